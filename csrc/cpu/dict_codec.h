// Codec "dict" as the CPU code uses it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dict_layout.h"
#include "cpu/row_codec.h"

namespace ibp {

constexpr int kMaxColumnCodeBits = 3;  // of the dictionaries per column that SIMD code looks up by byte

struct DictCodec final : RowCodec {
  DictLayout layout;
  std::vector<uint16_t> dictionary;  // symbol of (column, code): layout.dictionary_entries(), and one to spare
  std::vector<uint8_t>
      code_of_symbol;  // 2^symbol_bits per column, or for the row; escape() where there is none; 3 to spare
  uint16_t escape_dictionary[kPlainSymbol + 1] = {};  // symbol of an escape code; 0 for kPlainSymbol
  std::vector<uint8_t> escape_code_of_symbol;         // [2^symbol_bits]; kPlainSymbol where there is none

  // For SIMD code: the dictionary of the row and the escape dictionary, a byte a symbol; and, for eight values of 32
  // bits, where the low bits of value j are in the 16 bytes from its half's first byte on (which bytes, and how far to
  // shift).
  uint8_t shared_symbols[16] = {};
  uint8_t escape_symbols[16] = {};
  std::vector<uint8_t> column_symbols;  // [columns << kMaxColumnCodeBits], and 128 to spare; empty if it does not fit
  int8_t low_shuffle[32] = {};
  uint32_t low_shift[8] = {};

  // dictionary: layout.dictionary_entries() symbols, distinct within a column; those from num_symbols() on are ignored.
  // escape_dictionary: kPlainSymbol symbols.
  DictCodec(const DictLayout& layout, const uint16_t* dictionary, int64_t entries, const uint16_t* escape_dictionary,
            int64_t escape_entries);

  const RowOps& Ops(const CodePath& path) const override;
  int64_t DeviceTableBytes(bool encoder) const override;
  void WriteDeviceTables(bool encoder, uint8_t* out) const override;
};

}  // namespace ibp
