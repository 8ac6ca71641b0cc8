#include "cpu/fit.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <set>

#include "core/dict_layout.h"
#include "core/ibp_layout.h"
#include "cpu/rows.h"
#include "cpu/slot_choice.h"

namespace ibp {
namespace {

__extension__ using Cost = __int128;  // bits of a sample times rows of a store

struct Sample {
  const ValueType& type;
  int64_t num_values;
  const uint8_t* rows;
  int64_t num_rows, total_rows;
  int threads;

  int64_t row_bytes() const { return num_values * type.bits / 8; }
};

// --- what a codec makes of the sample -------------------------------------------------------------------------------

struct Sizes {
  int64_t slots = 0;     // and overflow rows, with the best slot length
  int64_t payloads = 0;  // raw rows where they are not longer
};

Sizes Measure(const CodecDescription& description, const Sample& sample) {
  const auto codec = description.Make();
  const int64_t row_bytes = sample.row_bytes();
  std::vector<int32_t> lengths(static_cast<size_t>(sample.num_rows));
  MeasureRows(*codec, SelectCodePath(), sample.rows, sample.num_rows, lengths.data(), sample.threads);
  std::vector<int64_t> rows_of_length(static_cast<size_t>(row_bytes + 1));
  Sizes sizes;
  for (const int32_t length : lengths) {
    const int64_t stored = std::min<int64_t>(length, row_bytes);
    ++rows_of_length[static_cast<size_t>(stored)];
    sizes.payloads += stored;
  }
  const int64_t slot_bytes = BestSlotBytes(rows_of_length.data(), row_bytes);
  const int64_t overflows =
      std::accumulate(rows_of_length.begin() + std::min(slot_bytes, row_bytes) + 1, rows_of_length.end(), int64_t{0});
  sizes.slots = sample.num_rows * slot_bytes + overflows * row_bytes;
  return sizes;
}

// --- codec "ibp" ----------------------------------------------------------------------------------------------------

constexpr double kThresholds[] = {0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0};
constexpr int64_t kMaxFittedChunkBits = 4096;

// The bits on whose value a share `threshold` of the rows agree; half of the rows are no majority for 1.
void FindInvariantBits(const std::vector<int64_t>& ones, int64_t num_rows, double threshold, CodecDescription& found) {
  found.mask.assign(ones.size() / 8, 0);
  found.bitval = found.mask;
  for (size_t bit = 0; bit < ones.size(); ++bit) {
    const bool set_in_most = 2 * ones[bit] > num_rows;
    const int64_t agreeing = set_in_most ? ones[bit] : num_rows - ones[bit];
    if (static_cast<double>(agreeing) < threshold * static_cast<double>(num_rows)) continue;
    const uint8_t one = static_cast<uint8_t>(1 << (bit % 8));
    found.mask[bit / 8] |= one;
    if (set_in_most) found.bitval[bit / 8] |= one;
  }
}

CodecDescription FitIbp(const Sample& sample) {
  const int64_t row_bytes = sample.row_bytes();
  std::vector<int64_t> ones(static_cast<size_t>(8 * row_bytes));
  CountOnes(sample.rows, sample.num_rows, row_bytes, ones.data(), sample.threads);
  CodecDescription best;
  int64_t fewest = -1;
  std::set<std::vector<uint8_t>> seen;
  for (const double threshold : kThresholds) {
    CodecDescription found;
    found.kind = "ibp";
    FindInvariantBits(ones, sample.num_rows, threshold, found);
    std::vector<uint8_t> key = found.mask;
    key.insert(key.end(), found.bitval.begin(), found.bitval.end());
    if (!seen.insert(key).second) continue;
    for (found.chunk_bits = kMinChunkBits;; found.chunk_bits *= 2) {
      const int64_t size = Measure(found, sample).payloads;
      if (fewest < 0 || size < fewest) {
        best = found;
        fewest = size;
      }
      if (found.chunk_bits >= std::min(8 * row_bytes, kMaxFittedChunkBits)) break;
    }
  }
  return best;
}

// --- codec "dict" ---------------------------------------------------------------------------------------------------

constexpr int kMaxColumnSymbolBits = 8;
constexpr int kMustSave = 200;  // one part in so many: a dictionary per column, another cut than the first
// One part in so many off the slots: codes of fewer than 3 bits.
constexpr int kShortCodeBits = 3, kShortCodesMustSave = 40;

struct Cut {
  int symbol_bits;
  bool sign_low;
  int top_bits() const { return symbol_bits + (sign_low ? 1 : 0); }
};

std::vector<Cut> Cuts(const ValueType& type) {
  if (type.exponent_bits > 0) return {{type.exponent_bits, true}, {type.exponent_bits, false}};
  if (type.is_bool) return {{type.bits - 1, false}};
  std::vector<Cut> cuts;
  for (const int bits : {4, 8, 12, 16}) {
    if (bits < type.bits) cuts.push_back({bits, false});
  }
  return cuts;
}

// How often the top_bits highest bits of a value are what, [columns, 2^top_bits], with and without values of 0; how
// many values of each row are not 0; bits that are 0 at the end of all values.
struct Counts {
  int64_t columns;
  int top_bits;
  std::vector<int64_t> with_zeros, without_zeros, nonzeros;
  int trailing_zeros;
};

Counts CountValues(const Sample& sample, int top_bits, bool with_columns) {
  Counts counts;
  counts.columns = with_columns ? sample.num_values : 1;
  counts.top_bits = top_bits;
  counts.with_zeros.assign(static_cast<size_t>(counts.columns << top_bits), 0);
  const int64_t value_bytes = sample.type.bits / 8;
  std::vector<int64_t> zeros(static_cast<size_t>(counts.columns));
  uint64_t any = 0;
  for (int64_t row = 0; row < sample.num_rows; ++row) {
    int64_t nonzeros = 0;
    for (int64_t i = 0; i < sample.num_values; ++i) {
      uint64_t value = 0;
      std::memcpy(&value, sample.rows + (row * sample.num_values + i) * value_bytes, static_cast<size_t>(value_bytes));
      const int64_t column = with_columns ? i : 0;
      ++counts.with_zeros[static_cast<size_t>(column << top_bits) +
                          static_cast<size_t>(value >> (sample.type.bits - top_bits))];
      any |= value;
      nonzeros += value != 0;
      zeros[static_cast<size_t>(column)] += value == 0;
    }
    counts.nonzeros.push_back(nonzeros);
  }
  counts.without_zeros = counts.with_zeros;
  for (int64_t column = 0; column < counts.columns; ++column) {
    counts.without_zeros[static_cast<size_t>(column << top_bits)] -= zeros[static_cast<size_t>(column)];
  }
  counts.trailing_zeros = any == 0 ? sample.type.bits : 0;
  while (any != 0 && (any >> counts.trailing_zeros & 1) == 0) ++counts.trailing_zeros;
  return counts;
}

// [columns, 2^symbol_bits], or the sum over all columns.
std::vector<int64_t> CountSymbols(const Counts& counts, const Cut& cut, bool zero_code, bool per_column) {
  const std::vector<int64_t>& from = zero_code ? counts.without_zeros : counts.with_zeros;
  const int64_t columns = per_column ? counts.columns : 1;
  std::vector<int64_t> symbols(static_cast<size_t>(columns << cut.symbol_bits));
  const int below = counts.top_bits - cut.top_bits();
  for (int64_t column = 0; column < counts.columns; ++column) {
    for (int64_t top = 0; top < int64_t{1} << counts.top_bits; ++top) {
      const int64_t symbol = (top >> below) & ((int64_t{1} << cut.symbol_bits) - 1);  // the sign above it is left out
      symbols[static_cast<size_t>((per_column ? column << cut.symbol_bits : 0) + symbol)] +=
          from[static_cast<size_t>((column << counts.top_bits) + top)];
    }
  }
  return symbols;
}

// The `most` most frequent of them, ties by the lower one.
std::vector<uint16_t> MostFrequent(const int64_t* counts, int64_t num_symbols, int64_t most) {
  std::vector<uint16_t> order(static_cast<size_t>(num_symbols));
  std::iota(order.begin(), order.end(), uint16_t{0});
  const auto end = order.begin() + std::min(most, num_symbols);
  std::partial_sort(order.begin(), end, order.end(),
                    [&](uint16_t a, uint16_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  order.erase(end, order.end());
  return order;
}

// The form with these dictionaries, and the bits of the sample's payloads, escape codes not rounded up to bytes.
std::pair<CodecDescription, int64_t> Evaluate(const Sample& sample, const Counts& counts, const Cut& cut, int code_bits,
                                              bool zero_code, bool per_column) {
  CodecDescription form;
  form.kind = "dict";
  form.num_values = sample.num_values;
  form.value_bits = sample.type.bits;
  form.symbol_bits = cut.symbol_bits;
  form.trim_bits = std::min(counts.trailing_zeros, sample.type.bits - cut.symbol_bits - 1);
  form.code_bits = code_bits;
  form.sign_low = cut.sign_low;
  form.zero_code = zero_code;
  form.per_column = per_column;
  const int64_t all = int64_t{1} << cut.symbol_bits, columns = per_column ? counts.columns : 1;
  const std::vector<int64_t> symbols = CountSymbols(counts, cut, zero_code, per_column);
  std::vector<int64_t> escaped(static_cast<size_t>(all));
  form.dictionary.assign(static_cast<size_t>(columns << code_bits), 0);
  for (int64_t column = 0; column < columns; ++column) {
    const int64_t* of_column = symbols.data() + column * all;
    const std::vector<uint16_t> order = MostFrequent(of_column, all, (1 << code_bits) - 1 - zero_code);
    std::copy(order.begin(), order.end(), form.dictionary.begin() + (column << code_bits));
    for (int64_t symbol = 0; symbol < all; ++symbol) escaped[static_cast<size_t>(symbol)] += of_column[symbol];
    for (const uint16_t symbol : order) escaped[symbol] -= of_column[symbol];
  }
  form.escape_dictionary = MostFrequent(escaped.data(), all, kPlainSymbol);
  const int64_t escapes = std::accumulate(escaped.begin(), escaped.end(), int64_t{0});
  int64_t plain = escapes;
  for (const uint16_t symbol : form.escape_dictionary) plain -= escaped[symbol];
  form.escape_dictionary.resize(kPlainSymbol, 0);
  const int64_t low_bits = sample.type.bits - cut.symbol_bits - form.trim_bits;
  int64_t bytes = sample.num_rows * ((sample.num_values * code_bits + 7) / 8) + plain * (cut.symbol_bits <= 8 ? 1 : 2);
  for (const int64_t nonzeros : counts.nonzeros) {
    bytes += ((zero_code ? nonzeros : sample.num_values) * low_bits + 7) / 8;
  }
  return {std::move(form), 8 * bytes + escapes * kEscapeCodeBits};
}

CodecDescription FitDict(const Sample& sample) {
  const std::vector<Cut> cuts = Cuts(sample.type);
  struct Candidate {
    Cost cost;
    CodecDescription form;
  };
  std::optional<Candidate> best[kMaxCodeBits + 1];  // for each length of codes
  for (const bool with_columns : {true, false}) {   // longer symbols have no dictionary per column
    int top_bits = 0;
    const auto of_kind = [&](const Cut& cut) { return (cut.symbol_bits <= kMaxColumnSymbolBits) == with_columns; };
    for (const Cut& cut : cuts) top_bits = of_kind(cut) ? std::max(top_bits, cut.top_bits()) : top_bits;
    if (top_bits == 0) continue;
    const Counts counts = CountValues(sample, top_bits, with_columns);
    for (size_t c = 0; c < cuts.size(); ++c) {
      if (!of_kind(cuts[c])) continue;
      for (const bool zero_code : {false, true}) {
        for (const bool per_column : {false, true}) {
          if (per_column && !with_columns) continue;
          for (int code_bits = zero_code ? 2 : 1; code_bits <= kMaxCodeBits; ++code_bits) {
            auto [form, payload_bits] = Evaluate(sample, counts, cuts[c], code_bits, zero_code, per_column);
            const int64_t dictionary_bits =
                16 * static_cast<int64_t>(form.dictionary.size() + form.escape_dictionary.size());
            Cost cost = Cost{payload_bits} * sample.total_rows + Cost{dictionary_bits} * sample.num_rows;
            cost *= kMustSave - (per_column ? 0 : 1);
            cost *= kMustSave - (c == 0 || !cuts[0].sign_low ? 1 : 0);
            if (!best[code_bits] || cost < best[code_bits]->cost) best[code_bits] = {cost, std::move(form)};
          }
        }
      }
    }
  }
  std::vector<Candidate> by_cost;
  for (auto& candidate : best) {
    if (candidate) by_cost.push_back(std::move(*candidate));
  }
  std::stable_sort(by_cost.begin(), by_cost.end(),
                   [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  // Of these, the one with the fewest bytes of slots.
  int64_t fewest = -1;
  CodecDescription chosen;
  for (Candidate& candidate : by_cost) {
    const int64_t cost = Measure(candidate.form, sample).slots *
                         (kShortCodesMustSave - (candidate.form.code_bits >= kShortCodeBits ? 1 : 0));
    if (fewest >= 0 && cost >= fewest) continue;
    fewest = cost;
    chosen = std::move(candidate.form);
  }
  return chosen;
}

}  // namespace

CodecParameters CodecDescription::Parameters() const {
  CodecParameters parameters;
  const auto bytes = [](const std::vector<uint8_t>& array) {
    return CodecParameters::Array<uint8_t>{array.data(), static_cast<int64_t>(array.size())};
  };
  const auto symbols = [](const std::vector<uint16_t>& array) {
    return CodecParameters::Array<uint16_t>{array.data(), static_cast<int64_t>(array.size())};
  };
  if (kind == "ibp") {
    parameters.Add("mask", bytes(mask));
    parameters.Add("bitval", bytes(bitval));
    parameters.Add("chunk_bits", chunk_bits);
    return parameters;
  }
  parameters.Add("num_values", num_values);
  parameters.Add("value_bits", int64_t{value_bits});
  parameters.Add("symbol_bits", int64_t{symbol_bits});
  parameters.Add("trim_bits", int64_t{trim_bits});
  parameters.Add("code_bits", int64_t{code_bits});
  parameters.Add("sign_low", sign_low);
  parameters.Add("zero_code", zero_code);
  parameters.Add("per_column", per_column);
  parameters.Add("dictionary", symbols(dictionary));
  parameters.Add("escape_dictionary", symbols(escape_dictionary));
  return parameters;
}

CodecDescription FitCodec(const char* kind, const ValueType& type, int64_t num_values, const uint8_t* rows,
                          int64_t num_rows, int64_t total_rows, int threads) {
  const bool dict = std::strcmp(kind, "dict") == 0, ibp = std::strcmp(kind, "ibp") == 0;
  if (!dict && !ibp && std::strcmp(kind, "auto") != 0) {
    Throw<ArgumentError>("kind: want auto, dict or ibp, got '", kind, "'");
  }
  CheckAtLeast("num_rows", 1, num_rows);
  CheckAtLeast("total_rows", num_rows, total_rows);
  if (num_values < 1 || num_values > kMaxRowBytes / (type.bits / 8)) {
    Throw<ArgumentError>("num_values: want 1 to ", kMaxRowBytes / (type.bits / 8), ", got ", num_values);
  }
  const Sample sample{type, num_values, rows, num_rows, total_rows, threads};
  if (ibp) return FitIbp(sample);
  CodecDescription of_dict = FitDict(sample);
  if (dict) return of_dict;
  CodecDescription of_ibp = FitIbp(sample);
  const Sizes a = Measure(of_dict, sample), b = Measure(of_ibp, sample);
  const bool ibp_is_smaller = b.slots != a.slots ? b.slots < a.slots : b.payloads < a.payloads;
  return ibp_is_smaller ? of_ibp : of_dict;
}

}  // namespace ibp
