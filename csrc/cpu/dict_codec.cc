#include "cpu/dict_codec.h"

#include <cstring>

#include "core/dict_parameters.h"
#include "core/dict_tables.h"
#include "cpu/row_ops.h"

namespace ibp {

DictCodec::DictCodec(const DictLayout& layout_, const uint16_t* dictionary_, int64_t entries,
                     const uint16_t* escape_dictionary_, int64_t escape_entries)
    : layout(layout_) {
  CheckEqual("dictionary entries", layout.dictionary_entries(), entries);
  CheckEqual("escape_dictionary entries", int64_t{kPlainSymbol}, escape_entries);
  row_bytes = layout.row_bytes;
  scratch_words = 2;
  dictionary.assign(dictionary_, dictionary_ + entries);
  const int64_t columns = layout.per_column ? layout.num_values : 1;
  if (layout.per_column && layout.symbol_bits > 8) {
    Throw<ArgumentError>("symbol_bits of a dictionary per column: want at most 8, got ", layout.symbol_bits);
  }
  auto check_symbol = [&](const char* what, uint16_t symbol) {
    if (symbol >> layout.symbol_bits) {
      Throw<ArgumentError>(what, ": want symbols of ", layout.symbol_bits, " bits, got ", symbol);
    }
  };
  code_of_symbol.assign(static_cast<size_t>(columns << layout.symbol_bits), static_cast<uint8_t>(layout.escape()));
  for (int64_t column = 0; column < columns; ++column) {
    for (int32_t code = 0; code < (1 << layout.code_bits); ++code) {
      uint16_t& symbol = dictionary[static_cast<size_t>((column << layout.code_bits) + code)];
      if (code >= layout.num_symbols()) {
        symbol = 0;
        continue;
      }
      check_symbol("dictionary", symbol);
      uint8_t& known = code_of_symbol[static_cast<size_t>((column << layout.symbol_bits) + symbol)];
      if (known != layout.escape()) Throw<ArgumentError>("dictionary: want distinct symbols, got ", symbol, " twice");
      known = static_cast<uint8_t>(code);
    }
  }
  escape_code_of_symbol.assign(size_t{1} << layout.symbol_bits, kPlainSymbol);
  for (int code = kPlainSymbol - 1; code >= 0; --code) {  // the lowest code of a symbol stays
    const uint16_t symbol = escape_dictionary_[code];
    check_symbol("escape_dictionary", symbol);
    escape_dictionary[code] = symbol;
    escape_symbols[code] = static_cast<uint8_t>(symbol);
    escape_code_of_symbol[symbol] = static_cast<uint8_t>(code);
  }
  // SIMD code loads 32 bits at the last entries.
  dictionary.push_back(0);
  code_of_symbol.resize(code_of_symbol.size() + 3);
  if (!layout.per_column) {
    for (int code = 0; code < layout.num_symbols(); ++code) {
      shared_symbols[code] = static_cast<uint8_t>(dictionary[static_cast<size_t>(code)]);
    }
  }
  if (layout.per_column && layout.code_bits <= kMaxColumnCodeBits) {
    column_symbols.resize(static_cast<size_t>(columns << kMaxColumnCodeBits) + 128);
    for (int64_t column = 0; column < columns; ++column) {
      for (int code = 0; code < layout.num_symbols(); ++code) {
        column_symbols[static_cast<size_t>((column << kMaxColumnCodeBits) + code)] =
            static_cast<uint8_t>(dictionary[static_cast<size_t>((column << layout.code_bits) + code)]);
      }
    }
  }
  for (int j = 0; j < 8; ++j) {
    const int bit = j < 4 ? j * layout.low_bits() : (4 * layout.low_bits()) % 8 + (j - 4) * layout.low_bits();
    for (int b = 0; b < 4; ++b) low_shuffle[4 * j + b] = static_cast<int8_t>(bit / 8 + b);
    low_shift[j] = static_cast<uint32_t>(bit % 8);
  }
}

const RowOps& DictCodec::Ops(const CodePath& path) const { return path.dict; }

int64_t DictCodec::DeviceTableBytes(bool encoder) const { return DictTables(layout, encoder).bytes; }

void DictCodec::WriteDeviceTables(bool encoder, uint8_t* out) const {
  const DictTables tables(layout, encoder);
  const int codes = 1 << layout.code_bits;
  std::memset(out + tables.packed, 0, static_cast<size_t>(tables.dictionary - tables.packed));
  for (int64_t column = 0; tables.has_packed && column < tables.columns; ++column) {
    for (int code = 0; code < codes; ++code) {
      out[tables.packed + 8 * column + code] =
          static_cast<uint8_t>(dictionary[static_cast<size_t>(column * codes + code)]);
    }
  }
  std::memcpy(out + tables.dictionary, dictionary.data(),
              static_cast<size_t>(tables.code_of_symbol - tables.dictionary));
  if (!encoder) return;
  std::memcpy(out + tables.code_of_symbol, code_of_symbol.data(),
              static_cast<size_t>(tables.escape_code_of_symbol - tables.code_of_symbol));
  std::memcpy(out + tables.escape_code_of_symbol, escape_code_of_symbol.data(), escape_code_of_symbol.size());
}

std::unique_ptr<RowCodec> Make_dict_codec(const CodecParameters& parameters) {
  const auto dictionary = parameters.Symbols("dictionary"), escapes = parameters.Symbols("escape_dictionary");
  return std::make_unique<DictCodec>(DictLayoutOf(parameters), dictionary.data, dictionary.length, escapes.data,
                                     escapes.length);
}

}  // namespace ibp
