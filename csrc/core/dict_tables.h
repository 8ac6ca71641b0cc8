// The tables that a GPU reads of codec "dict", one after the other in one buffer:
//
//   packed                 uint64 [columns]: a column's dictionary, a byte a symbol; zeros if it does not fit 8 bytes
//   dictionary             uint16 [columns, 2^code_bits]; 0 behind the symbols that have a code
//   code_of_symbol         uint8 [columns, 2^symbol_bits], the other way round; the escape where there is no code
//   escape_code_of_symbol  uint8 [2^symbol_bits]; kPlainSymbol where there is none
//
// Columns: num_values if there is a dictionary per column, else 1. The last two are for encoding; gathers do without.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/dict_layout.h"

namespace ibp {

// Where each table starts, in bytes, and where the last one ends.
struct DictTables {
  int64_t columns = 0;
  int64_t packed = 0, dictionary = 0, code_of_symbol = 0, escape_code_of_symbol = 0;
  int64_t bytes = 0;
  bool has_packed = false;

  DictTables(const DictLayout& layout, bool encoder)
      : columns(layout.per_column ? layout.num_values : 1),
        dictionary(columns * int64_t{sizeof(uint64_t)}),
        code_of_symbol(dictionary + layout.dictionary_entries() * int64_t{sizeof(uint16_t)}),
        escape_code_of_symbol(code_of_symbol + (columns << layout.symbol_bits)),
        bytes(encoder ? escape_code_of_symbol + (int64_t{1} << layout.symbol_bits) : code_of_symbol),
        has_packed(layout.code_bits <= 3 && layout.symbol_bits <= 8) {}
};

// dictionary: layout.dictionary_entries() symbols, each below 2^symbol_bits where it has a code; escape_dictionary:
// kPlainSymbol symbols. out: DictTables(layout, encoder).bytes bytes, aligned to 8.
inline void MakeDictTables(const DictLayout& layout, const uint16_t* dictionary, const uint16_t* escape_dictionary,
                           bool encoder, uint8_t* out) {
  const DictTables tables(layout, encoder);
  std::memset(out, 0, static_cast<size_t>(tables.bytes));
  const int codes = 1 << layout.code_bits;
  auto* used = reinterpret_cast<uint16_t*>(out + tables.dictionary);
  for (int64_t column = 0; column < tables.columns; ++column) {
    for (int code = 0; code < layout.num_symbols(); ++code) {
      const uint16_t symbol = dictionary[column * codes + code];
      used[column * codes + code] = symbol;
      if (tables.has_packed) out[tables.packed + 8 * column + code] = static_cast<uint8_t>(symbol);
    }
  }
  if (!encoder) return;
  uint8_t* code_of_symbol = out + tables.code_of_symbol;
  std::memset(code_of_symbol, layout.escape(), static_cast<size_t>(tables.columns << layout.symbol_bits));
  for (int64_t column = 0; column < tables.columns; ++column) {
    for (int code = 0; code < layout.num_symbols(); ++code) {
      code_of_symbol[(column << layout.symbol_bits) + used[column * codes + code]] = static_cast<uint8_t>(code);
    }
  }
  uint8_t* escape_code_of_symbol = out + tables.escape_code_of_symbol;
  std::memset(escape_code_of_symbol, kPlainSymbol, size_t{1} << layout.symbol_bits);
  for (int code = kPlainSymbol - 1; code >= 0; --code) {  // the lowest code of a symbol stays
    escape_code_of_symbol[escape_dictionary[code]] = static_cast<uint8_t>(code);
  }
}

}  // namespace ibp
