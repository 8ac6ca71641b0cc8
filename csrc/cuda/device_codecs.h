// Fitted codecs as kernels take them, by value.
#pragma once

#include <cstdint>

#include "core/dict_layout.h"
#include "core/ibp_layout.h"
#include "cuda/dict_lanes/code_bits.h"

namespace ibp {

// Codec "ibp": the layout and the tables of core/ibp_tables.h.
struct DeviceIbpCodec {
  IbpLayout layout;
  const uint32_t* tables_dev = nullptr;
};

// Codec "dict": the layout and the tables of core/dict_tables.h. Gathers do without those that look codes up.
struct DeviceDictCodec {
  DictLayout layout;
  const uint16_t* dictionary_dev = nullptr;
  const uint64_t* packed_dev = nullptr;  // null if the dictionary does not fit
  const uint8_t* code_of_symbol_dev = nullptr;
  uint16_t escape_dictionary[kPlainSymbol + 1] = {};  // 0 for kPlainSymbol
  const uint8_t* escape_code_of_symbol_dev = nullptr;
  CodeBits codes{2};  // for codes of 2 or 3 bits
};

}  // namespace ibp
