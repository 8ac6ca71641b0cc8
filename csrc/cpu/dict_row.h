// Codec "dict" on one row, for values of any width. Included and parametrised like ibp_row.h.
#pragma once

#include "cpu/bit_io.h"
#include "cpu/row_ops.h"

namespace ibp {
namespace {

// Where a payload's planes lie, and how many escapes and values with low bits it has.
struct DictPlanes {
  int32_t escapes = 0;
  int32_t values_with_low = 0;
  int64_t tail = 0;   // byte where the escaped symbols start
  int64_t bytes = 0;  // of the whole payload
};

inline void SetPlanes(const DictLayout& layout, DictPlanes& planes) {
  planes.tail = int64_t{layout.codes_bytes()} + layout.LowBytes(planes.values_with_low);
  planes.bytes = planes.tail + int64_t{planes.escapes} * layout.symbol_bytes();
}

inline int CodeAt(const uint8_t* codes, int32_t i, int code_bits) {
  const int64_t bit = int64_t{i} * code_bits;
  const uint32_t two_bytes = codes[bit >> 3] | static_cast<uint32_t>(codes[(bit >> 3) + 1]) << 8;
  return static_cast<int>((two_bytes >> (bit & 7)) & LowMask<uint32_t>(code_bits));
}

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
      planes.escapes += code == layout.escape();
      planes.values_with_low += !(layout.zero_code && code == layout.num_symbols());
    }
    SetPlanes(layout, planes);
    return true;
  }

  static void Encode(const DictCodec& codec, const uint8_t* row, int64_t tail_start, uint8_t* payload) {
    EncodeRest(codec, row, 0, BitWriter{payload}, BitWriter{payload + codec.layout.codes_bytes()},
               payload + tail_start);
  }

  // Values [first, num_values), those before being written.
  static void EncodeRest(const DictCodec& codec, const uint8_t* row, int32_t first, BitWriter codes, BitWriter low,
                         uint8_t* tail) {
    const DictLayout& layout = codec.layout;
    for (int32_t i = first; i < layout.num_values; ++i) {
      int code;
      SplitValue<Word> parts;
      Code(codec, row, i, code, parts);
      codes.Put(static_cast<uint64_t>(code), layout.code_bits);
      if (layout.zero_code && code == layout.num_symbols()) continue;
      low.Put(static_cast<uint64_t>(parts.low), layout.low_bits());
      if (code == layout.escape()) {
        std::memcpy(tail, &parts.symbol, static_cast<size_t>(layout.symbol_bytes()));
        tail += layout.symbol_bytes();
      }
    }
    codes.Finish();
    low.Finish();
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
    if (planes.bytes > limit_bytes) return false;
    const uint8_t* low_plane = payload + layout.codes_bytes();
    const uint8_t* tail = payload + planes.tail;
    const int low_bits = layout.low_bits();
    int64_t low_bit = 0;
    for (int32_t i = 0; i < layout.num_values; ++i) {
      const int code = CodeAt(payload, i, layout.code_bits);
      Word value = 0;
      if (code != zero) {
        const int64_t column = layout.per_column ? int64_t{i} << layout.code_bits : 0;
        uint32_t symbol = codec.dictionary[static_cast<size_t>(column + code)];
        if (code == layout.escape()) {
          std::memcpy(&symbol, tail, static_cast<size_t>(layout.symbol_bytes()));
          symbol &= LowMask<uint32_t>(layout.symbol_bits);
          tail += layout.symbol_bytes();
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
  // scratch: 1 word, where the escaped symbols start.
  static int32_t Measure(const RowCodec& any, const uint8_t* row, uint64_t* scratch) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    return WithWord(codec.layout, [&](auto word) {
      DictPlanes planes;
      const bool has_payload = DictValues<Isa, decltype(word)>::PlanRest(codec, row, 0, planes);
      scratch[0] = static_cast<uint64_t>(planes.tail);
      return has_payload ? static_cast<int32_t>(planes.bytes) : codec.row_bytes;
    });
  }

  static void Encode(const RowCodec& any, const uint8_t* row, const uint64_t* scratch, uint8_t* payload, int32_t) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    const int64_t tail = static_cast<int64_t>(scratch[0]);
    WithWord(codec.layout, [&](auto word) { DictValues<Isa, decltype(word)>::Encode(codec, row, tail, payload); });
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
