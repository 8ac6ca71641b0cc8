// Codecs of every form from a fuzzer's bytes, through parameters by name, as callers pass them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/codec_parameters.h"
#include "core/dict_layout.h"
#include "cpu/row_codec.h"
#include "cpu/row_ops.h"
#include "fuzz/fuzz_input.h"

namespace ibp {

// The code paths that this CPU has, the scalar one first.
inline const std::vector<const CodePath*>& Paths() {
  static const std::vector<const CodePath*> paths = [] {
    std::vector<const CodePath*> found;
    for (const char* name : {"scalar", "avx2", "avx512"}) {
      try {
        found.push_back(&CodePathByName(name));
      } catch (const ArgumentError&) {
      }
    }
    return found;
  }();
  return paths;
}

// Null if the parameters are refused: with ArgumentError, or it is a find.
inline std::unique_ptr<RowCodec> Made(const char* name, const CodecParameters& parameters) {
  try {
    return MakeCodec(name, parameters);
  } catch (const ArgumentError&) {
    return nullptr;
  }
}

inline std::unique_ptr<RowCodec> FuzzedIbp(FuzzInput& input) {
  const bool valid = !input.Flag();
  const int64_t row_bytes = input.Between(valid ? 1 : 0, 300);
  const Bytes mask = input.Of(row_bytes);
  Bytes bitval = input.Of(row_bytes + (valid ? 0 : input.Between(0, 1)));
  for (size_t i = 0; valid && i < bitval.size(); ++i) bitval[i] &= mask[i];
  CodecParameters parameters;
  parameters.Add("mask", CodecParameters::Array<uint8_t>{mask.data(), row_bytes});
  parameters.Add("bitval", CodecParameters::Array<uint8_t>{bitval.data(), static_cast<int64_t>(bitval.size())});
  parameters.Add("chunk_bits", valid ? int64_t{1} << input.Between(3, 13) : input.Any<int64_t>());
  return Made("ibp", parameters);
}

inline std::unique_ptr<RowCodec> FuzzedDict(FuzzInput& input) {
  const bool valid = !input.Flag();
  const uint8_t flags = input.Byte();
  const bool sign_low = flags & 1, zero_code = flags & 2, per_column = flags & 4;
  const auto any_or = [&](int64_t low, int64_t high) {
    return valid ? input.Between(low, std::max(low, high)) : int64_t{input.Any<int8_t>()};
  };
  const int64_t value_bits = valid ? 8 << input.Between(0, 3) : input.Any<uint8_t>();
  const int64_t num_values = valid ? input.Between(1, 300) : input.Any<int16_t>();
  // Those of float32 and bfloat16 have code of their own.
  const int64_t symbol_bits = flags & 8 ? 8 : any_or(1, std::min<int64_t>(value_bits - 1, per_column ? 8 : 16));
  const int64_t trim_bits = flags & 16 ? 0 : any_or(0, value_bits - symbol_bits - 1);
  const int64_t code_bits = any_or(zero_code ? 2 : 1, kMaxCodeBits);
  // A file or caller may say more than there is: the arrays' lengths are what they are.
  const int64_t columns = per_column && num_values > 0 ? num_values : 1;
  const int64_t codes = int64_t{1} << std::clamp<int64_t>(code_bits, 0, 4);
  std::vector<uint16_t> dictionary, escapes;
  for (int64_t column = 0; column < columns; ++column) {
    // Distinct symbols without a search: a start, and an odd step.
    const uint32_t start = input.Byte(), step = valid ? input.Byte() | 1u : input.Byte();
    for (int64_t code = 0; code < codes; ++code) {
      const uint32_t symbol = start + step * static_cast<uint32_t>(code);
      dictionary.push_back(static_cast<uint16_t>(valid ? symbol & ((1u << symbol_bits) - 1) : symbol));
    }
  }
  for (int i = 0; i < kPlainSymbol; ++i) {
    const uint16_t symbol = symbol_bits > 8 ? input.Any<uint16_t>() : input.Byte();
    escapes.push_back(valid ? static_cast<uint16_t>(symbol & ((1u << symbol_bits) - 1)) : symbol);
  }
  if (!valid && input.Flag()) dictionary.pop_back();
  if (!valid && input.Flag()) escapes.pop_back();
  dictionary.shrink_to_fit();
  escapes.shrink_to_fit();
  CodecParameters parameters;
  parameters.Add("num_values", num_values);
  parameters.Add("value_bits", value_bits);
  parameters.Add("symbol_bits", symbol_bits);
  parameters.Add("trim_bits", trim_bits);
  parameters.Add("code_bits", code_bits);
  parameters.Add("sign_low", sign_low);
  parameters.Add("zero_code", zero_code);
  parameters.Add("per_column", per_column);
  parameters.Add("dictionary", CodecParameters::Array<uint16_t>{dictionary.data(), int64_t(dictionary.size())});
  parameters.Add("escape_dictionary", CodecParameters::Array<uint16_t>{escapes.data(), int64_t(escapes.size())});
  return Made("dict", parameters);
}

// One of either, or null. Their tables for a GPU are written, too, to exactly their bytes.
inline std::unique_ptr<RowCodec> FuzzedCodec(FuzzInput& input) {
  auto codec = input.Flag() ? FuzzedDict(input) : FuzzedIbp(input);
  for (const bool encoder : {false, true}) {
    if (codec == nullptr) break;
    Bytes tables(static_cast<size_t>(codec->DeviceTableBytes(encoder)));
    codec->WriteDeviceTables(encoder, tables.data());
  }
  return codec;
}

}  // namespace ibp
