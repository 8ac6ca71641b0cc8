// Codec "dict" on one row, for values of any width. Included and parametrised like ibp_row.h.
#pragma once

#include "cpu/bit_io.h"
#include "cpu/dict_codec.h"
#include "cpu/row_ops.h"

namespace ibp {
namespace {

// Decoding reads with CodeAt (2 bytes) and ReadBits, before the limit.
static_assert(kReadBitsBytes <= kSlackBytes);

// Where a payload's planes lie, and how many values each has.
struct DictPlanes {
  int32_t values_with_low = 0;
  int32_t escapes = 0;
  int32_t plain_symbols = 0;
  int64_t escape_codes = 0;  // byte where they start
  int64_t plain = 0;         // byte where the plain symbols start
  int64_t bytes = 0;         // of the whole payload
};

inline void SetPlanes(const DictLayout& layout, DictPlanes& planes) {
  planes.escape_codes = int64_t{layout.codes_bytes()} + layout.LowBytes(planes.values_with_low);
  planes.plain = planes.escape_codes + layout.EscapeBytes(planes.escapes);
  planes.bytes = planes.plain + int64_t{planes.plain_symbols} * layout.symbol_bytes();
}

inline void SavePlanes(const DictPlanes& planes, uint64_t* scratch) {
  scratch[0] = static_cast<uint64_t>(planes.escape_codes);
  scratch[1] = static_cast<uint64_t>(planes.plain);
}

inline int CodeAt(const uint8_t* codes, int32_t i, int code_bits) {
  const int64_t bit = int64_t{i} * code_bits;
  const uint32_t two_bytes = codes[bit >> 3] | static_cast<uint32_t>(codes[(bit >> 3) + 1]) << 8;
  return static_cast<int>((two_bytes >> (bit & 7)) & LowMask<uint32_t>(code_bits));
}

// Writes the planes of a payload side by side.
struct DictWriter {
  BitWriter codes, low, escape_codes;
  uint8_t* plain;

  // scratch: from SavePlanes.
  DictWriter(const DictLayout& layout, const uint64_t* scratch, uint8_t* payload)
      : codes{payload},
        low{payload + layout.codes_bytes()},
        escape_codes{payload + scratch[0]},
        plain(payload + scratch[1]) {}

  void PutEscape(const DictCodec& codec, uint32_t symbol) {
    const uint8_t code = codec.escape_code_of_symbol[symbol];
    escape_codes.Put(code, kEscapeCodeBits);
    if (code != kPlainSymbol) return;
    const size_t bytes = static_cast<size_t>(codec.layout.symbol_bytes());
    std::memcpy(plain, &symbol, bytes);
    plain += bytes;
  }
  void Finish() {
    codes.Finish();
    low.Finish();
    escape_codes.Finish();
  }
};

template <typename Isa, typename Word>
struct DictValues {
  // Code and parts of value i; false if bits would be lost that trim_bits says are 0.
  static bool Code(const DictCodec& codec, const uint8_t* row, int32_t i, int& code, SplitValue<Word>& parts) {
    const DictLayout& layout = codec.layout;
    const Word value = Load<Word>(row + static_cast<int64_t>(i) * sizeof(Word));
    parts = Split(value, layout);
    const int64_t column = layout.per_column ? int64_t{i} << layout.symbol_bits : 0;
    code = layout.zero_code && value == 0 ? layout.num_symbols()
                                          : codec.code_of_symbol[static_cast<size_t>(column + parts.symbol)];
    return parts.fits;
  }

  // Counts values [first, num_values), those before being counted in `planes`. Returns false for a row that has no
  // payload.
  static bool PlanRest(const DictCodec& codec, const uint8_t* row, int32_t first, DictPlanes& planes) {
    const DictLayout& layout = codec.layout;
    for (int32_t i = first; i < layout.num_values; ++i) {
      int code;
      SplitValue<Word> parts;
      if (!Code(codec, row, i, code, parts)) return false;
      planes.values_with_low += !(layout.zero_code && code == layout.num_symbols());
      if (code == layout.escape()) {
        ++planes.escapes;
        planes.plain_symbols += codec.escape_code_of_symbol[parts.symbol] == kPlainSymbol;
      }
    }
    SetPlanes(layout, planes);
    return true;
  }

  // Values [first, num_values), those before being written.
  static void EncodeRest(const DictCodec& codec, const uint8_t* row, int32_t first, DictWriter out) {
    const DictLayout& layout = codec.layout;
    for (int32_t i = first; i < layout.num_values; ++i) {
      int code;
      SplitValue<Word> parts;
      Code(codec, row, i, code, parts);
      out.codes.Put(static_cast<uint64_t>(code), layout.code_bits);
      if (layout.zero_code && code == layout.num_symbols()) continue;
      out.low.Put(static_cast<uint64_t>(parts.low), layout.low_bits());
      if (code == layout.escape()) out.PutEscape(codec, parts.symbol);
    }
    out.Finish();
  }

  static bool Decode(const DictCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictLayout& layout = codec.layout;
    if (layout.codes_bytes() > limit_bytes) return false;
    const int zero = layout.zero_code ? layout.num_symbols() : -1;
    DictPlanes planes;
    for (int32_t i = 0; i < layout.num_values; ++i) {
      const int code = CodeAt(payload, i, layout.code_bits);
      planes.escapes += code == layout.escape();
      planes.values_with_low += code != zero;
    }
    SetPlanes(layout, planes);
    if (planes.plain > limit_bytes) return false;
    const uint8_t* low_plane = payload + layout.codes_bytes();
    int64_t escape_bit = 8 * planes.escape_codes, plain = planes.plain;
    const int low_bits = layout.low_bits();
    int64_t low_bit = 0;
    for (int32_t i = 0; i < layout.num_values; ++i) {
      const int code = CodeAt(payload, i, layout.code_bits);
      Word value = 0;
      if (code != zero) {
        const int64_t column = layout.per_column ? int64_t{i} << layout.code_bits : 0;
        uint32_t symbol = codec.dictionary[static_cast<size_t>(column + code)];
        if (code == layout.escape()) {
          const uint64_t escape_code = ReadBits(payload, escape_bit, kEscapeCodeBits);
          escape_bit += kEscapeCodeBits;
          symbol = codec.escape_dictionary[escape_code];
          if (escape_code == kPlainSymbol) {
            if (plain + layout.symbol_bytes() > limit_bytes) return false;
            std::memcpy(&symbol, payload + plain, static_cast<size_t>(layout.symbol_bytes()));
            symbol &= LowMask<uint32_t>(layout.symbol_bits);
            plain += layout.symbol_bytes();
          }
        }
        const Word low = static_cast<Word>(ReadBits(low_plane, low_bit, low_bits));
        low_bit += low_bits;
        value = Join(symbol, low, layout);
      }
      std::memcpy(row + static_cast<int64_t>(i) * sizeof(Word), &value, sizeof(Word));
    }
    return true;
  }
};

template <typename Isa>
struct DictRow {
  // scratch: 2 words, where the escape codes and the plain symbols start.
  static int32_t Measure(const RowCodec& any, const uint8_t* row, uint64_t* scratch) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    return WithWord(codec.layout, [&](auto word) {
      DictPlanes planes;
      const bool has_payload = DictValues<Isa, decltype(word)>::PlanRest(codec, row, 0, planes);
      SavePlanes(planes, scratch);
      return has_payload ? static_cast<int32_t>(planes.bytes) : codec.row_bytes;
    });
  }

  static void Encode(const RowCodec& any, const uint8_t* row, const uint64_t* scratch, uint8_t* payload, int32_t) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    const DictWriter out(codec.layout, scratch, payload);
    WithWord(codec.layout, [&](auto word) { DictValues<Isa, decltype(word)>::EncodeRest(codec, row, 0, out); });
  }

  static bool Decode(const RowCodec& any, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    return WithWord(codec.layout, [&](auto word) {
      return DictValues<Isa, decltype(word)>::Decode(codec, payload, limit_bytes, row);
    });
  }

  static constexpr RowOps Ops() { return RowOps{&Measure, &Encode, &Decode}; }
};

}  // namespace
}  // namespace ibp
