// Codec "dict" with AVX-512 (VBMI and VBMI2): decodes float32, 16 values at a time, and bfloat16, 32 at a time, without
// a branch. Codes of up to 3 bits go straight to the byte where their symbol belongs, one shuffle turns them into
// symbols, and an expansion puts the escaped ones among them, which come from the escape codes in the same way.
// Everything else takes dict_row_avx2.h.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "cpu/dict_row_avx2.h"

static_assert(ibp::kMaxColumnCodeBits == 3, "eight entries a column");

namespace ibp {
namespace {

template <typename Isa>
struct DictRowAvx512 : DictRowAvx2<Isa> {
  using Avx2 = DictRowAvx2<Isa>;

  static bool Decode(const RowCodec& any, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    const DictLayout& layout = codec.layout;
    const bool serves = layout.symbol_bits == 8 && layout.trim_bits == 0 && layout.code_bits <= kMaxColumnCodeBits &&
                        (layout.value_bits == 32 || (layout.value_bits == 16 && !layout.per_column));
    if (!serves) return Avx2::Decode(any, payload, limit_bytes, row);
    if (layout.value_bits == 16) return Decode<uint16_t, false>(codec, payload, limit_bytes, row);
    return layout.per_column ? Decode<uint32_t, true>(codec, payload, limit_bytes, row)
                             : Decode<uint32_t, false>(codec, payload, limit_bytes, row);
  }

  // The symbols of the escaped values, taken group by group.
  class Escapes {
   public:
    Escapes(const DictCodec& codec, const uint8_t* payload, int64_t escape_codes, int64_t limit_bytes)
        : payload_(payload), limit_bytes_(limit_bytes), bit_(8 * escape_codes) {
      const __m128i symbols = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codec.escape_symbols));
      symbols_ = _mm256_broadcastsi128_si256(symbols);
    }

    // `symbols` with those of the escaped values in the bytes that `escaped` marks, at most 32. plain_start() says
    // where the payload's plain symbols start; it is asked once, if there is one at all.
    template <typename PlainStart>
    bool Take(__mmask64 escaped, const PlainStart& plain_start, __m512i& symbols) {
      const int count = static_cast<int>(_mm_popcnt_u64(escaped));
      const int64_t first = bit_;
      bit_ += kEscapeCodeBits * count;
      if (bit_ > 8 * limit_bytes_) return false;
      // 16 codes are in 48 bits, which a word has from any bit of its first byte on.
      const int64_t low = PackedFrom(first), high = PackedFrom(first + 16 * kEscapeCodeBits);
      const __m256i shifts =
          _mm256_set_epi64x(0x2d2a2724211e1b18, 0x15120f0c09060300, 0x2d2a2724211e1b18, 0x15120f0c09060300);
      const __m256i codes =
          _mm256_and_si256(_mm256_multishift_epi64_epi8(shifts, _mm256_set_epi64x(high, high, low, low)),
                           _mm256_set1_epi8(kPlainSymbol));
      __m256i in_order = _mm256_shuffle_epi8(symbols_, codes);
      const __mmask32 plain = _mm256_cmpeq_epi8_mask(codes, _mm256_set1_epi8(kPlainSymbol)) & LowMask<uint32_t>(count);
      if (plain) {
        if (next_plain_ < 0) next_plain_ = plain_start();
        const int64_t from = next_plain_;
        next_plain_ += _mm_popcnt_u32(plain);
        if (next_plain_ > limit_bytes_) return false;
        const __m256i loaded = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(payload_ + from));
        in_order = _mm256_mask_expand_epi8(in_order, plain, loaded);
      }
      symbols = _mm512_mask_expand_epi8(symbols, escaped, _mm512_castsi256_si512(in_order));
      return true;
    }

   private:
    int64_t PackedFrom(int64_t bit) const {
      return static_cast<int64_t>(ibp::Load<uint64_t>(payload_ + bit / 8) >> (bit % 8));
    }

    const uint8_t* payload_;
    int64_t limit_bytes_, bit_;
    int64_t next_plain_ = -1;
    __m256i symbols_;
  };

  // How the codes of a group go to the top bytes of its values: code j is code_bits bits from bit j * code_bits on, of
  // its half's codes where a group has 32 (Word is 16 bits wide), and its value has byte sizeof(Word) * j + top.
  template <typename Word>
  struct Codes {
    alignas(64) uint8_t shift[64], mask[64], other[64];

    Codes(int code_bits, bool per_column) {
      constexpr int kTop = sizeof(Word) - 1;
      for (int byte = 0; byte < 64; ++byte) {
        const int value = byte / static_cast<int>(sizeof(Word));
        const bool top = byte % static_cast<int>(sizeof(Word)) == kTop;
        shift[byte] = static_cast<uint8_t>(value % 16 * code_bits);
        mask[byte] = top ? LowMask<uint8_t>(code_bits) : 0;
        other[byte] = top ? static_cast<uint8_t>(per_column ? value << kMaxColumnCodeBits : 0) : 0x80;
      }
    }
  };

  static __m512i Load(const uint8_t* bytes) { return _mm512_load_si512(bytes); }

  template <typename Word, bool kPerColumn>
  static bool Decode(const DictCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    return codec.layout.zero_code ? Decode<Word, kPerColumn, true>(codec, payload, limit_bytes, row)
                                  : Decode<Word, kPerColumn, false>(codec, payload, limit_bytes, row);
  }

  template <typename Word, bool kPerColumn, bool kZeroCode>
  static bool Decode(const DictCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    constexpr int kValues = 64 / sizeof(Word), kLowBytes = sizeof(Word) - 1;
    constexpr __mmask64 kTopBytes = sizeof(Word) == 4 ? 0x8888888888888888ull : 0xaaaaaaaaaaaaaaaaull;
    const DictLayout& layout = codec.layout;
    const int code_bits = layout.code_bits, num_values = layout.num_values;
    if (layout.codes_bytes() > limit_bytes) return false;
    static const Codes<Word> by_code_bits[] = {{1, kPerColumn}, {2, kPerColumn}, {3, kPerColumn}};
    const Codes<Word>& to_top = by_code_bits[code_bits - 1];
    const __m512i shift = Load(to_top.shift), mask = Load(to_top.mask), other = Load(to_top.other);
    // The codes of a group, each in the top byte of its value; the other bytes are 0.
    auto codes_of = [&](int32_t first) {
      const uint8_t* codes = payload + first / 8 * code_bits;  // groups start at whole bytes
      __m512i packed = _mm512_set1_epi64(static_cast<int64_t>(ibp::Load<uint64_t>(codes)));
      if constexpr (sizeof(Word) == 2) {
        const __m512i upper = _mm512_set1_epi64(static_cast<int64_t>(ibp::Load<uint64_t>(codes + 2 * code_bits)));
        packed = _mm512_mask_blend_epi64(0xf0, packed, upper);
      }
      return _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, packed), mask);
    };
    auto bytes_of = [&](int32_t first) {
      return LowMask<uint64_t>(std::min(num_values - first, kValues) * static_cast<int>(sizeof(Word)));
    };
    // Top bytes of values with low bits, which only a zero code has exceptions from.
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(layout.num_symbols()));
    auto with_low = [&](__m512i codes, __mmask64 bytes) {
      return kZeroCode ? _mm512_mask_cmpneq_epi8_mask(bytes & kTopBytes, codes, zero) : bytes & kTopBytes;
    };

    DictPlanes planes;
    planes.values_with_low = num_values;
    if constexpr (kZeroCode) {
      planes.values_with_low = 0;
      for (int32_t first = 0; first < num_values; first += kValues) {
        planes.values_with_low += static_cast<int32_t>(_mm_popcnt_u64(with_low(codes_of(first), bytes_of(first))));
      }
    }
    SetPlanes(layout, planes);
    if (planes.bytes > limit_bytes) return false;
    const __m512i escape = _mm512_set1_epi8(static_cast<char>(layout.escape()));
    auto escaped_of = [&](__m512i codes, __mmask64 bytes) {
      return _mm512_mask_cmpeq_epi8_mask(bytes & kTopBytes, codes, escape);
    };
    auto plain_start = [&] {
      for (int32_t first = 0; first < num_values; first += kValues) {
        planes.escapes += static_cast<int32_t>(_mm_popcnt_u64(escaped_of(codes_of(first), bytes_of(first))));
      }
      SetPlanes(layout, planes);
      return planes.plain;
    };
    Escapes escapes(codec, payload, planes.escape_codes, limit_bytes);
    const uint8_t* low_bytes = payload + layout.codes_bytes();
    const __m512i dictionary = _mm512_broadcast_i32x4(Avx2::SharedDictionary(codec));
    const int rotated_by = layout.sign_low ? 1 : 0;
    for (int32_t first = 0; first < num_values; first += kValues) {
      const __mmask64 bytes = bytes_of(first);
      const __m512i codes = codes_of(first);
      const __m512i index = _mm512_or_si512(codes, other);
      __m512i symbols;
      if constexpr (kPerColumn) {
        const uint8_t* columns = codec.column_symbols.data() + (static_cast<int64_t>(first) << kMaxColumnCodeBits);
        symbols = _mm512_maskz_permutex2var_epi8(kTopBytes, _mm512_loadu_si512(columns), index,
                                                 _mm512_loadu_si512(columns + 64));
      } else {
        symbols = _mm512_shuffle_epi8(dictionary, index);
      }
      if (!escapes.Take(escaped_of(codes, bytes), plain_start, symbols)) return false;
      const __mmask64 present = with_low(codes, bytes);
      const int low_count = kLowBytes * static_cast<int>(_mm_popcnt_u64(present));
      const __m512i low = _mm512_maskz_loadu_epi8(LowMask<uint64_t>(low_count), low_bytes);
      low_bytes += low_count;
      __m512i below;
      if constexpr (kZeroCode) {
        // The bytes below the top one of each value that has them.
        __mmask64 places = present >> 1;
        if constexpr (sizeof(Word) == 4) places |= (present >> 2) | (present >> 3);
        below = _mm512_maskz_expand_epi8(places, low);
      } else if constexpr (sizeof(Word) == 4) {
        const __m512i spread = _mm512_set_epi32(0x302f2e2d, 0x2d2c2b2a, 0x2a292827, 0x27262524, 0x24232221, 0x21201f1e,
                                                0x1e1d1c1b, 0x1b1a1918, 0x18171615, 0x15141312, 0x1211100f, 0x0f0e0d0c,
                                                0x0c0b0a09, 0x09080706, 0x06050403, 0x03020100);
        below = _mm512_maskz_permutexvar_epi8(~kTopBytes, spread, low);
      } else {
        below = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(low));
      }
      const __m512i rotated = _mm512_or_si512(symbols, below);
      const __m512i value =
          sizeof(Word) == 4 ? _mm512_rorv_epi32(rotated, _mm512_set1_epi32(rotated_by))
                            : _mm512_shrdv_epi16(rotated, rotated, _mm512_set1_epi16(static_cast<int16_t>(rotated_by)));
      _mm512_mask_storeu_epi8(row + static_cast<int64_t>(first) * sizeof(Word), bytes, value);
    }
    return true;
  }

  static constexpr RowOps Ops() {
    RowOps ops = Avx2::Ops();
    ops.decode = &Decode;
    return ops;
  }
};

}  // namespace
}  // namespace ibp
