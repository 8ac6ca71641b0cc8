// Fitting a codec to a sample of rows, as ibp_gnn.Codec.fit does: the same codec for the same sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/codec_parameters.h"
#include "cpu/row_codec.h"

namespace ibp {

// What values are, as far as fitting looks at them.
struct ValueType {
  int32_t bits = 0;           // 8, 16, 32 or 64
  int32_t exponent_bits = 0;  // of floats; else 0
  bool is_bool = false;
};

// A codec's parameters, with the arrays that they refer to.
struct CodecDescription {
  std::string kind;  // of core/codec_list.h
  // Of "ibp".
  std::vector<uint8_t> mask, bitval;
  int64_t chunk_bits = 0;
  // Of "dict".
  int64_t num_values = 0;
  int32_t value_bits = 0, symbol_bits = 0, trim_bits = 0, code_bits = 0;
  bool sign_low = false, zero_code = false, per_column = false;
  std::vector<uint16_t> dictionary, escape_dictionary;

  // Valid as long as this is.
  CodecParameters Parameters() const;
  std::unique_ptr<RowCodec> Make() const { return MakeCodec(kind.c_str(), Parameters()); }
};

// rows: [num_rows, num_values], num_rows >= 1, a sample of total_rows rows. kind: "dict", "ibp", or "auto": the one for
// which slots and overflow rows of the sample take fewer bytes. Throws ArgumentError.
CodecDescription FitCodec(const char* kind, const ValueType& type, int64_t num_values, const uint8_t* rows,
                          int64_t num_rows, int64_t total_rows, int threads);

}  // namespace ibp
