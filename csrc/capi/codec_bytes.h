// A codec as bytes, for ibp_codec_save and ibp_codec_load:
//
//   magic      8 bytes, "IBPCODEC"
//   version    uint32, 1; row_format: uint32, of core/format.h
//   kind       8 bytes, filled up with zeros
//   numbers    int64 each: of "ibp" row_bytes, chunk_bits; of "dict" num_values, value_bits, symbol_bits, trim_bits,
//              code_bits, flags (1 sign_low, 2 zero_code, 4 per_column)
//   arrays     of "ibp" mask and bitval, uint8 [row_bytes]; of "dict" dictionary, uint16 [columns, 2^code_bits], and
//              escape_dictionary, uint16 [7]
//   checksum   uint64, FNV-1a of all before it
//
// All little endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/fit.h"

namespace ibp {

std::vector<uint8_t> SaveCodec(const CodecDescription& description);
// Throws FormatError.
CodecDescription LoadCodec(const uint8_t* bytes, size_t num_bytes);

}  // namespace ibp
