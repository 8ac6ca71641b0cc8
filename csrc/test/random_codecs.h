// Codecs of every form, and rows for them, made from random numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/dict_codec.h"
#include "cpu/ibp_codec.h"

namespace ibp {

using Bytes = std::vector<uint8_t>;  // allocated to its size, so that AddressSanitizer sees the first byte behind it

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Word() { return engine_(); }
  // low to high, both included.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }
  void Fill(Bytes& bytes) {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine_());
  }
  Bytes Of(int64_t length) {
    Bytes bytes(static_cast<size_t>(length));
    Fill(bytes);
    return bytes;
  }

 private:
  std::mt19937_64 engine_;
};

struct RandomIbp {
  Bytes mask, bitval;
  IbpCodec codec;

  explicit RandomIbp(Random& random) : RandomIbp(random, random.Between(1, 300)) {}
  RandomIbp(Random& random, int64_t row_bytes)
      : mask(Mask(random, row_bytes)),
        bitval(random.Of(row_bytes)),
        codec((Mask(bitval, mask), mask.data()), bitval.data(), row_bytes, int64_t{1} << random.Between(3, 13)) {}

  Bytes Rows(Random& random, int64_t num_rows) const {
    Bytes rows = random.Of(num_rows * codec.row_bytes);
    for (int64_t row = 0; row < num_rows; ++row) {
      if (random.Chance(10)) continue;  // noise
      for (int32_t i = 0; i < codec.row_bytes; ++i) {
        uint8_t& byte = rows[static_cast<size_t>(row * codec.row_bytes + i)];
        const size_t at = static_cast<size_t>(i);
        if (!random.Chance(2)) byte = static_cast<uint8_t>((byte & ~mask[at]) | bitval[at]);
      }
    }
    return rows;
  }

 private:
  static Bytes Mask(Random& random, int64_t row_bytes) {
    const int ones = static_cast<int>(random.Between(0, 4)) * 25;
    Bytes mask(static_cast<size_t>(row_bytes));
    for (uint8_t& byte : mask) byte = random.Chance(ones) ? 255 : static_cast<uint8_t>(random.Word() & random.Word());
    if (ones == 100) std::fill(mask.begin(), mask.end(), uint8_t{255});
    return mask;
  }
  static void Mask(Bytes& bitval, const Bytes& mask) {
    for (size_t i = 0; i < mask.size(); ++i) bitval[i] &= mask[i];
  }
};

struct RandomDict {
  DictLayout layout;
  std::vector<uint16_t> dictionary, escape_dictionary;
  DictCodec codec;

  explicit RandomDict(Random& random)
      : layout(Layout(random)),
        dictionary(Dictionary(random, layout)),
        escape_dictionary(EscapeDictionary(random, layout)),
        codec(layout, dictionary.data(), static_cast<int64_t>(dictionary.size()), escape_dictionary.data(),
              kPlainSymbol) {}

  Bytes Rows(Random& random, int64_t num_rows) const {
    return WithWord(layout, [&](auto word) {
      using Word = decltype(word);
      Bytes rows(static_cast<size_t>(num_rows * layout.row_bytes));
      for (int64_t row = 0; row < num_rows; ++row) {
        const bool has_payload = !random.Chance(5);
        const int common = static_cast<int>(random.Between(0, 4)) * 25;
        for (int32_t i = 0; i < layout.num_values; ++i) {
          const Word low = static_cast<Word>(random.Word() & LowMask<uint64_t>(layout.low_bits()));
          Word value = Join(Symbol(random, i, common), low, layout);
          if (random.Chance(10)) value = 0;
          if (!has_payload) value = static_cast<Word>(random.Word());
          std::memcpy(rows.data() + row * layout.row_bytes + i * static_cast<int64_t>(sizeof(Word)), &value,
                      sizeof(Word));
        }
      }
      return rows;
    });
  }

 private:
  static DictLayout Layout(Random& random) {
    const int32_t value_bits = 8 << random.Between(0, 3);
    const bool per_column = random.Chance(40), zero_code = random.Chance(40);
    // Half of them as float32 and bfloat16 have them, for which there is code of its own.
    const bool as_float = value_bits > 8 && random.Chance(50);
    const int most_symbol_bits = std::min(value_bits - 1, per_column ? 8 : kMaxSymbolBits);
    const int32_t symbol_bits = as_float ? 8 : static_cast<int32_t>(random.Between(1, most_symbol_bits));
    const int32_t trim_bits = as_float ? 0 : static_cast<int32_t>(random.Between(0, value_bits - symbol_bits - 1));
    int32_t code_bits = static_cast<int32_t>(random.Between(zero_code ? 2 : 1, kMaxCodeBits));
    // A dictionary has no more symbols than there are.
    while ((1 << code_bits) - 1 - zero_code > (1 << symbol_bits)) --code_bits;
    return MakeDictLayout(random.Between(1, random.Chance(50) ? 20 : 200), value_bits, symbol_bits, trim_bits,
                          code_bits, as_float || random.Chance(50), zero_code, per_column);
  }

  static std::vector<uint16_t> Dictionary(Random& random, const DictLayout& layout) {
    std::vector<uint16_t> all(size_t{1} << layout.symbol_bits), dictionary;
    for (size_t symbol = 0; symbol < all.size(); ++symbol) all[symbol] = static_cast<uint16_t>(symbol);
    for (int32_t column = 0; column < (layout.per_column ? layout.num_values : 1); ++column) {
      for (int32_t code = 0; code < 1 << layout.code_bits; ++code) {
        uint16_t symbol = 0xffff;  // of a code that stands for none; not looked at
        if (code < layout.num_symbols()) {
          std::swap(all[static_cast<size_t>(code)],
                    all[static_cast<size_t>(random.Between(code, static_cast<int64_t>(all.size()) - 1))]);
          symbol = all[static_cast<size_t>(code)];
        }
        dictionary.push_back(symbol);
      }
    }
    return dictionary;
  }

  static std::vector<uint16_t> EscapeDictionary(Random& random, const DictLayout& layout) {
    std::vector<uint16_t> symbols;
    for (int i = 0; i < kPlainSymbol; ++i) {
      symbols.push_back(static_cast<uint16_t>(random.Word() & LowMask<uint64_t>(layout.symbol_bits)));
    }
    return symbols;
  }

  // common: per cent of symbols that have a code.
  uint32_t Symbol(Random& random, int32_t i, int common) const {
    if (random.Chance(common)) {
      const int64_t column = layout.per_column ? int64_t{i} << layout.code_bits : 0;
      return dictionary[static_cast<size_t>(column + random.Between(0, layout.num_symbols() - 1))];
    }
    if (random.Chance(70)) return escape_dictionary[static_cast<size_t>(random.Between(0, kPlainSymbol - 1))];
    return static_cast<uint32_t>(random.Word() & LowMask<uint64_t>(layout.symbol_bits));
  }
};

}  // namespace ibp
