// Codec "dict": every value as a short code for its symbol (a float's exponent, an integer's high bits) and its low
// bits as they are. The symbols of real data are few, so codes are short; the low bits are noise, so they are not
// touched.
//
//   payload = [codes: num_values codes of code_bits bits, then 0 bits up to a whole byte]
//             [low bits: low_bits bits of each value that has them, in order, then 0 bits up to a whole byte]
//             [escape codes: kEscapeCodeBits bits of each value whose code is the escape, in order, then 0 bits up to a
//              whole byte]
//             [plain symbols: symbol_bytes bytes of each value whose escape code is kPlainSymbol, little endian, in
//              order]
//
// A value of value_bits bits is cut into symbol and low part. With sign_low (floats), the symbol is the symbol_bits
// bits below the top bit, and the top bit goes below the rest of the low part: then [symbol][low part] is the value
// rotated left by one bit. Otherwise the symbol is the top symbol_bits bits. The lowest trim_bits bits of every value
// are 0 and are not stored; a row where they are not has no payload.
//
// Codes 0 .. num_symbols - 1 stand for the symbols of the dictionary: one for the whole row, or one per column. With
// zero_code, code num_symbols means a value whose bits are all 0, which has no low bits in the payload. Code
// 2^code_bits - 1 is the escape: the value's escape code stands for a symbol of the escape dictionary, which the
// whole row shares, or is kPlainSymbol: the symbol is written out. A symbol in the dictionary is always written with
// its code, one in the escape dictionary with its lowest escape code, and with zero_code an all-0 value always with the
// zero code, so that each row has one payload.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/check.h"
#include "core/format.h"

namespace ibp {

constexpr int kMaxCodeBits = 4;
constexpr int kMaxSymbolBits = 16;
constexpr int kEscapeCodeBits = 3;
constexpr int kPlainSymbol = (1 << kEscapeCodeBits) - 1;  // also the number of symbols in the escape dictionary

struct DictLayout {
  int32_t row_bytes = 0;
  int32_t num_values = 0;
  int32_t value_bits = 0;
  int32_t symbol_bits = 0;
  int32_t trim_bits = 0;
  int32_t code_bits = 0;
  bool sign_low = false;
  bool zero_code = false;
  bool per_column = false;

  IBP_HOST_DEVICE int32_t low_bits() const { return value_bits - symbol_bits - trim_bits; }
  IBP_HOST_DEVICE int32_t escape() const { return (1 << code_bits) - 1; }
  IBP_HOST_DEVICE int32_t num_symbols() const { return escape() - (zero_code ? 1 : 0); }
  IBP_HOST_DEVICE int32_t symbol_bytes() const { return symbol_bits <= 8 ? 1 : 2; }
  IBP_HOST_DEVICE int32_t codes_bytes() const {
    return static_cast<int32_t>((int64_t{num_values} * code_bits + 7) / 8);
  }
  IBP_HOST_DEVICE int32_t LowBytes(int32_t values) const {
    return static_cast<int32_t>((int64_t{values} * low_bits() + 7) / 8);
  }
  IBP_HOST_DEVICE static int32_t EscapeBytes(int32_t escapes) {
    return static_cast<int32_t>((int64_t{escapes} * kEscapeCodeBits + 7) / 8);
  }
  IBP_HOST_DEVICE int32_t PayloadBytes(int32_t values_with_low, int32_t escapes, int32_t plain_symbols) const {
    return codes_bytes() + LowBytes(values_with_low) + EscapeBytes(escapes) + plain_symbols * symbol_bytes();
  }
  // Entries of the dictionary table: 2^code_bits per column, or for the row; unused ones are 0.
  int64_t dictionary_entries() const { return int64_t{per_column ? num_values : 1} << code_bits; }
};

// The longest payload of any row, plain symbols everywhere.
IBP_HOST_DEVICE int64_t DictPayloadBound(const DictLayout& layout) {
  return int64_t{layout.codes_bytes()} + layout.LowBytes(layout.num_values) + layout.EscapeBytes(layout.num_values) +
         int64_t{layout.num_values} * layout.symbol_bytes();
}

inline void CheckDictLayout(const DictLayout& layout) {
  auto within = [](const char* what, int64_t low, int64_t high, int64_t got) {
    if (got < low || got > high) Throw<ArgumentError>(what, ": want ", low, " to ", high, ", got ", got);
  };
  const int32_t bits = layout.value_bits;
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64) {
    Throw<ArgumentError>("value_bits: want 8, 16, 32 or 64, got ", bits);
  }
  within("num_values", 1, kMaxRowBytes / (bits / 8), layout.num_values);
  within("code_bits", 1, kMaxCodeBits, layout.code_bits);
  within("symbol_bits", 1, kMaxSymbolBits < bits ? kMaxSymbolBits : bits - 1, layout.symbol_bits);
  within("trim_bits", 0, bits - layout.symbol_bits - 1, layout.trim_bits);
  if (layout.zero_code) within("code_bits with zero_code", 2, kMaxCodeBits, layout.code_bits);
  if (int64_t{layout.row_bytes} * 8 != int64_t{layout.num_values} * bits) {
    Throw<ArgumentError>("row_bytes: want ", int64_t{layout.num_values} * bits / 8, ", got ", layout.row_bytes);
  }
}

// Throws ArgumentError for parts that do not go together.
inline DictLayout MakeDictLayout(int64_t num_values, int32_t value_bits, int32_t symbol_bits, int32_t trim_bits,
                                 int32_t code_bits, bool sign_low, bool zero_code, bool per_column) {
  DictLayout layout;
  layout.num_values = static_cast<int32_t>(num_values);
  layout.row_bytes = static_cast<int32_t>(num_values * value_bits / 8);
  layout.value_bits = value_bits;
  layout.symbol_bits = symbol_bits;
  layout.trim_bits = trim_bits;
  layout.code_bits = code_bits;
  layout.sign_low = sign_low;
  layout.zero_code = zero_code;
  layout.per_column = per_column;
  CheckDictLayout(layout);
  return layout;
}

// Calls body with a value of the unsigned type that the layout's values have.
template <typename Body>
auto WithWord(const DictLayout& layout, const Body& body) {
  switch (layout.value_bits) {
    case 8:
      return body(uint8_t{});
    case 16:
      return body(uint16_t{});
    case 32:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

// A value's two parts. `low` is as stored; `fits` says that what is not stored of it is 0.
template <typename Word>
struct SplitValue {
  uint32_t symbol = 0;
  Word low = 0;
  bool fits = true;
};

template <typename Word>
IBP_HOST_DEVICE SplitValue<Word> Split(Word value, const DictLayout& layout) {
  constexpr int kBits = 8 * sizeof(Word);
  const int below = kBits - layout.symbol_bits - (layout.sign_low ? 1 : 0);
  SplitValue<Word> parts;
  parts.symbol = static_cast<uint32_t>(value >> below) & LowMask<uint32_t>(layout.symbol_bits);
  parts.low = static_cast<Word>((value & LowMask<Word>(below)) >> layout.trim_bits);
  if (layout.sign_low) parts.low = static_cast<Word>(Word(parts.low << 1) | Word(value >> (kBits - 1)));
  parts.fits = (value & LowMask<Word>(layout.trim_bits)) == 0;
  return parts;
}

template <typename Word>
IBP_HOST_DEVICE Word Join(uint32_t symbol, Word low, const DictLayout& layout) {
  constexpr int kBits = 8 * sizeof(Word);
  const Word high = static_cast<Word>(Word(symbol) << (kBits - layout.symbol_bits));
  if (!layout.sign_low) return static_cast<Word>(high | Word(low << layout.trim_bits));
  return static_cast<Word>(Word(low << (kBits - 1)) | (high >> 1) | Word(Word(low >> 1) << layout.trim_bits));
}

}  // namespace ibp
