// The tables that a GPU reads of codec "dict", one after the other in one buffer:
//
//   packed                 uint64 [columns]: a column's dictionary, a byte a symbol; zeros if it does not fit 8 bytes
//   dictionary             uint16 [columns, 2^code_bits]; 0 behind the symbols that have a code
//   code_of_symbol         uint8 [columns, 2^symbol_bits], the other way round; the escape where there is no code
//   escape_code_of_symbol  uint8 [2^symbol_bits]; kPlainSymbol where there is none
//
// Columns: num_values if there is a dictionary per column, else 1. The last two are for encoding; gathers do without.
#pragma once

#include <cstdint>

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

}  // namespace ibp
