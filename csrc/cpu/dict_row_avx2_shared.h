// Codec "dict" with AVX2 where the row has one dictionary: float32 and what has the same parts, and values of 16 bits,
// 32 at a time. See dict_row_avx2.h.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "cpu/dict_row.h"

namespace ibp {
namespace {

// Low bits of four values of 16 bits, from any bit of a byte on, are in 8 bytes, if they are this many at most.
constexpr int kMaxLowBits16 = 14;
static_assert(4 * kMaxLowBits16 + 7 <= 64);

// Fields of 1 to 4 bits, 32 of them one after the other in up to 16 bytes: to bytes.
struct FieldBytes32 {
  alignas(32) uint8_t bytes[2][32];   // the two bytes in which each field is, for words of 16 bits
  alignas(32) uint16_t scale[2][16];  // moves it to the top of its word
  int bits;

  // Words are in the order in which packing two registers gives all fields in order.
  explicit FieldBytes32(int bits_) : bits(bits_) {
    for (int half = 0; half < 2; ++half) {
      for (int word = 0; word < 16; ++word) {
        const int bit = (word / 8 * 16 + half * 8 + word % 8) * bits;
        bytes[half][2 * word] = static_cast<uint8_t>(bit / 8);
        bytes[half][2 * word + 1] = static_cast<uint8_t>(bit / 8 + 1);  // 16, of the last one, is not looked at
        scale[half][word] = static_cast<uint16_t>(1 << (16 - bits - bit % 8));
      }
    }
  }
  static const FieldBytes32& Of(int bits) {
    static const FieldBytes32 of_bits[] = {FieldBytes32(1), FieldBytes32(2), FieldBytes32(3), FieldBytes32(4)};
    return of_bits[bits - 1];
  }

  // The fields that start with the first of 16 bytes.
  __m256i Unpack(const uint8_t* packed) const {
    const __m256i loaded = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
    return _mm256_packus_epi16(Half(loaded, 0), Half(loaded, 1));
  }

 private:
  __m256i Half(__m256i loaded, int half) const {
    const __m256i words = _mm256_shuffle_epi8(loaded, Load(bytes[half]));
    return _mm256_srl_epi16(_mm256_mullo_epi16(words, Load(scale[half])), _mm_cvtsi32_si128(16 - bits));
  }
  static __m256i Load(const void* register_bytes) {
    return _mm256_load_si256(static_cast<const __m256i*>(register_bytes));
  }
};

// For four values, which of them are there: how their low bits, one after the other, are spread to all four.
struct Spread4 {
  alignas(16) uint8_t three_bytes[16][16];  // shuffles 12 bytes to words of 32 bits; the fourth byte is 0
  uint64_t words[16];                       // masks of 16 bits

  Spread4() {
    for (int present = 0; present < 16; ++present) {
      int at = 0;
      words[present] = 0;
      for (int value = 0; value < 4; ++value) {
        const bool is_here = (present >> value) & 1;
        for (int byte = 0; byte < 4; ++byte) {
          three_bytes[present][4 * value + byte] = static_cast<uint8_t>(is_here && byte < 3 ? at++ : 0x80);
        }
        if (is_here) words[present] |= uint64_t{0xffff} << (16 * value);
      }
    }
  }
  static const Spread4& Get() {
    static const Spread4 tables;
    return tables;
  }
};

template <typename Isa>
struct DictRowAvx2Shared {
  static constexpr int kGroup = 32;  // values

  // symbol_bits == 8, no trim_bits.
  static bool Decode32(const DictCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    return codec.layout.zero_code ? DecodeGroups<Values32<true>, true>(codec, payload, limit_bytes, row)
                                  : DecodeGroups<Values32<false>, false>(codec, payload, limit_bytes, row);
  }

  // symbol_bits <= 8, low_bits() <= kMaxLowBits16.
  static bool Decode16(const DictCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictLayout& layout = codec.layout;
    if (layout.zero_code) return DecodeGroups<Values16<true>, true>(codec, payload, limit_bytes, row);
    return layout.low_bits() == 8 && layout.trim_bits == 0
               ? DecodeGroups<WholeBytes16, false>(codec, payload, limit_bytes, row)
               : DecodeGroups<Values16<false>, false>(codec, payload, limit_bytes, row);
  }

 private:
  static __m256i Broadcast(const uint8_t* sixteen_bytes) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen_bytes)));
  }
  static uint32_t Equal(__m256i bytes, __m256i to) {
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, to)));
  }
  static __m128i Load16(const uint8_t* bytes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)); }
  static __m256i Load32(const void* bytes) { return _mm256_loadu_si256(static_cast<const __m256i*>(bytes)); }
  // The first `count` of 32 bytes, all of them if it is more.
  static void Store(uint8_t* out, __m256i bytes, int count) {
    if (count >= 32) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
    alignas(32) uint8_t all[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(all), bytes);
    std::memcpy(out, all, static_cast<size_t>(count));
  }

  // Values writes groups: made of the codec and where the low bits start; Write(symbols, present, count, out) puts
  // `count` values, at most 32, to out; `present`: those that have low bits.
  template <typename Values, bool kZeroCode>
  static bool DecodeGroups(const DictCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictLayout& layout = codec.layout;
    const int num_values = layout.num_values, code_bits = layout.code_bits;
    if (layout.codes_bytes() > limit_bytes) return false;
    const FieldBytes32& fields = FieldBytes32::Of(code_bits);
    auto codes_of = [&](int32_t first) { return fields.Unpack(payload + first / 8 * code_bits); };
    auto valid_of = [&](int32_t first) { return LowMask<uint32_t>(std::min(num_values - first, kGroup)); };
    const __m256i escape = _mm256_set1_epi8(static_cast<char>(layout.escape()));
    const __m256i zero = _mm256_set1_epi8(static_cast<char>(layout.num_symbols()));
    auto count_of = [&](__m256i code) {
      int32_t count = 0;
      for (int32_t first = 0; first < num_values; first += kGroup) {
        count += Isa::Count(Equal(codes_of(first), code) & valid_of(first));
      }
      return count;
    };

    DictPlanes planes;
    planes.values_with_low = kZeroCode ? num_values - count_of(zero) : num_values;
    SetPlanes(layout, planes);
    if (planes.bytes > limit_bytes) return false;
    auto plain_start = [&] {
      planes.escapes = count_of(escape);
      SetPlanes(layout, planes);
      return planes.plain;
    };
    Escapes escapes(codec, payload, planes.escape_codes, limit_bytes);
    Values values(codec, payload + layout.codes_bytes());
    const __m256i dictionary = Broadcast(codec.shared_symbols);
    for (int32_t first = 0; first < num_values; first += kGroup) {
      const uint32_t valid = valid_of(first);
      const __m256i codes = codes_of(first);
      __m256i symbols = _mm256_shuffle_epi8(dictionary, codes);
      const uint32_t escaped = Equal(codes, escape) & valid;
      if (escaped && !escapes.Take(escaped, plain_start, symbols)) return false;
      const uint32_t present = kZeroCode ? ~Equal(codes, zero) & valid : valid;
      const int count = std::min(num_values - first, kGroup);
      values.Write(symbols, present, count, row + static_cast<int64_t>(first) * Values::kBytes);
    }
    return true;
  }

  // The symbols of the escaped values, taken group by group.
  class Escapes {
   public:
    Escapes(const DictCodec& codec, const uint8_t* payload, int64_t escape_codes, int64_t limit_bytes)
        : payload_(payload),
          limit_bytes_(limit_bytes),
          bit_(8 * escape_codes),
          symbol_mask_(LowMask<uint8_t>(codec.layout.symbol_bits)),
          symbols_(Broadcast(codec.escape_symbols)) {}

    // Puts them into the bytes of `symbols`, which are 0, that `escaped`, not 0, marks. Returns false if the payload
    // does not have them. plain_start() says where its plain symbols start; it is asked once, if there is one at all.
    template <typename PlainStart>
    bool Take(uint32_t escaped, const PlainStart& plain_start, __m256i& symbols) {
      if (bit_ + kEscapeCodeBits * Isa::Count(escaped) > 8 * limit_bytes_) return false;
      uint64_t masks[4], codes[4];
      for (int eight = 0; eight < 4; ++eight) {
        const uint32_t here = (escaped >> (8 * eight)) & 0xff;
        masks[eight] = Isa::Deposit(here, FieldLowBits<uint64_t>(8)) * 0xff;
        const uint64_t packed = Load<uint64_t>(payload_ + bit_ / 8) >> (bit_ % 8);
        codes[eight] = Isa::Deposit(packed, masks[eight] & (FieldLowBits<uint64_t>(8) * kPlainSymbol));
        bit_ += kEscapeCodeBits * Isa::Count(here);
      }
      const __m256i code = Join(codes), mask = Join(masks);
      symbols = _mm256_or_si256(symbols, _mm256_and_si256(_mm256_shuffle_epi8(symbols_, code), mask));
      const uint32_t plain = Equal(code, _mm256_set1_epi8(kPlainSymbol));
      return plain == 0 || TakePlain(plain, plain_start, symbols);
    }

   private:
    static __m256i Join(const uint64_t (&words)[4]) {
      return _mm256_set_epi64x(static_cast<int64_t>(words[3]), static_cast<int64_t>(words[2]),
                               static_cast<int64_t>(words[1]), static_cast<int64_t>(words[0]));
    }

    // The symbols that are written out, for the bytes that `plain` marks. They are few.
    template <typename PlainStart>
    bool TakePlain(uint32_t plain, const PlainStart& plain_start, __m256i& symbols) {
      if (next_plain_ < 0) next_plain_ = plain_start();
      alignas(32) uint8_t bytes[kGroup];
      _mm256_store_si256(reinterpret_cast<__m256i*>(bytes), symbols);
      for (; plain; plain &= plain - 1) {
        if (next_plain_ >= limit_bytes_) return false;
        bytes[Isa::TrailingZeros(plain)] = payload_[next_plain_++] & symbol_mask_;
      }
      symbols = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes));
      return true;
    }

    const uint8_t* payload_;
    int64_t limit_bytes_, bit_;
    int64_t next_plain_ = -1;
    uint8_t symbol_mask_;
    __m256i symbols_;
  };

  // 8-bit symbols on top of 24 low bits. Only the eights that have values are read, since the payload may end there.
  template <bool kZeroCode>
  class Values32 {
   public:
    static constexpr int kBytes = 4;

    Values32(const DictCodec& codec, const uint8_t* low)
        : low_(low),
          right_(_mm_cvtsi32_si128(codec.layout.sign_low ? 1 : 0)),
          left_(_mm_cvtsi32_si128(codec.layout.sign_low ? 31 : 32)),
          // A symbol of the first eight to the top of each word, 0 elsewhere; then of the second eight.
          top_(_mm256_setr_epi32(0x00808080, 0x01808080, 0x02808080, 0x03808080, 0x04808080, 0x05808080, 0x06808080,
                                 0x07808080)),
          next_top_(_mm256_or_si256(top_, _mm256_set1_epi32(0x08000000))),
          // Three bytes to each word.
          packed_(_mm256_broadcastsi128_si256(
              _mm_setr_epi8(0, 1, 2, -128, 3, 4, 5, -128, 6, 7, 8, -128, 9, 10, 11, -128))) {}

    void Write(__m256i symbols, uint32_t present, int count, uint8_t* out) {
      const __m256i halves[] = {_mm256_permute2x128_si256(symbols, symbols, 0x00),
                                _mm256_permute2x128_si256(symbols, symbols, 0x11)};
      for (int at = 0; at < count; at += 8) {
        const __m256i top = _mm256_shuffle_epi8(halves[at / 16], at % 16 ? next_top_ : top_);
        const __m256i rotated = _mm256_or_si256(Low((present >> at) & 0xff), top);
        const __m256i value = _mm256_or_si256(_mm256_srl_epi32(rotated, right_), _mm256_sll_epi32(rotated, left_));
        Store(out + at * kBytes, value, (count - at) * kBytes);
      }
    }

   private:
    __m256i Low(uint32_t present) {
      if constexpr (kZeroCode) {
        const __m128i first = LowOfFour(present & 15), second = LowOfFour(present >> 4);
        return _mm256_set_m128i(second, first);
      } else {
        const __m256i bytes = _mm256_set_m128i(Load16(low_ + 12), Load16(low_));
        low_ += 24;
        return _mm256_shuffle_epi8(bytes, packed_);
      }
    }
    __m128i LowOfFour(uint32_t present) {
      const __m128i bytes = Load16(low_);
      low_ += 3 * Isa::Count(present);
      return _mm_shuffle_epi8(bytes, Load16(Spread4::Get().three_bytes[present]));
    }

    const uint8_t* low_;
    __m128i right_, left_;
    __m256i top_, next_top_, packed_;
  };

  // 8-bit symbols on top of 8 low bits.
  class WholeBytes16 {
   public:
    static constexpr int kBytes = 2;

    WholeBytes16(const DictCodec& codec, const uint8_t* low)
        : low_(low),
          right_(_mm_cvtsi32_si128(codec.layout.sign_low ? 1 : 0)),
          left_(_mm_cvtsi32_si128(codec.layout.sign_low ? 15 : 16)) {}

    void Write(__m256i symbols, uint32_t, int count, uint8_t* out) {
      // So that interleaving, which is done in each half, gives the values in order.
      const __m256i low = InOrder(Load32(low_)), high = InOrder(symbols);
      low_ += kGroup;
      Store(out, Rotated(_mm256_unpacklo_epi8(low, high)), count * kBytes);
      if (count > 16) Store(out + 32, Rotated(_mm256_unpackhi_epi8(low, high)), (count - 16) * kBytes);
    }

   private:
    static __m256i InOrder(__m256i bytes) { return _mm256_permute4x64_epi64(bytes, 0b11'01'10'00); }
    __m256i Rotated(__m256i words) const {
      return _mm256_or_si256(_mm256_srl_epi16(words, right_), _mm256_sll_epi16(words, left_));
    }

    const uint8_t* low_;
    __m128i right_, left_;
  };

  // Symbols on top of low bits, of whatever lengths.
  template <bool kZeroCode>
  class Values16 {
   public:
    static constexpr int kBytes = 2;

    Values16(const DictCodec& codec, const uint8_t* low)
        : low_(low),
          low_bits_(codec.layout.low_bits()),
          trim_bits_(codec.layout.trim_bits),
          second_half_(4 * low_bits_ / 8),
          field_(FieldLowBits<uint64_t>(16) * LowMask<uint64_t>(low_bits_)),
          shuffle_(Load32(codec.low_shuffle)),
          shift_(Load32(codec.low_shift)),
          mask_(_mm256_set1_epi32(static_cast<int>(LowMask<uint32_t>(low_bits_)))),
          right_(_mm_cvtsi32_si128(codec.layout.sign_low ? 1 : 0)),
          left_(_mm_cvtsi32_si128(codec.layout.sign_low ? 15 : 16)),
          up_(_mm_cvtsi32_si128((codec.layout.sign_low ? 1 : 0) + trim_bits_)),
          below_(_mm_cvtsi32_si128(16 - codec.layout.symbol_bits)),
          sign_(_mm256_set1_epi16(codec.layout.sign_low ? 1 : 0)) {}

    void Write(__m256i symbols, uint32_t present, int count, uint8_t* out) {
      for (int at = 0; at < count; at += 16) {
        const __m128i half = at ? _mm256_extracti128_si256(symbols, 1) : _mm256_castsi256_si128(symbols);
        __m256i low = Low((present >> at) & 0xffff);
        if (trim_bits_) {
          low = _mm256_or_si256(_mm256_sll_epi16(_mm256_srl_epi16(low, right_), up_), _mm256_and_si256(low, sign_));
        }
        const __m256i rotated = _mm256_or_si256(_mm256_sll_epi16(_mm256_cvtepu8_epi16(half), below_), low);
        const __m256i value = _mm256_or_si256(_mm256_srl_epi16(rotated, right_), _mm256_sll_epi16(rotated, left_));
        Store(out + at * kBytes, value, (count - at) * kBytes);
      }
    }

   private:
    // Of 16 values, a word of 16 bits each.
    __m256i Low(uint32_t present) {
      if constexpr (kZeroCode) {
        // Not by way of memory: a load of what was just stored in parts waits.
        const __m128i first = LowOfEight(present & 0xff), second = LowOfEight(present >> 8);
        return _mm256_set_m128i(second, first);
      } else {
        const __m256i first = NextEight(), second = NextEight();
        return _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0b11'01'10'00);
      }
    }

    // A word of 32 bits each.
    __m256i NextEight() {
      const __m256i bytes = _mm256_set_m128i(Load16(low_ + second_half_), Load16(low_));
      low_ += low_bits_;
      return _mm256_and_si256(_mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, shuffle_), shift_), mask_);
    }

    __m128i LowOfEight(uint32_t present) {
      const uint64_t first = LowOfFour(present & 15), second = LowOfFour(present >> 4);
      return _mm_set_epi64x(static_cast<int64_t>(second), static_cast<int64_t>(first));
    }
    uint64_t LowOfFour(uint32_t present) {
      const uint64_t packed = ibp::Load<uint64_t>(low_ + bit_ / 8) >> (bit_ % 8);
      bit_ += low_bits_ * Isa::Count(present);
      return Isa::Deposit(packed, field_ & Spread4::Get().words[present]);
    }

    const uint8_t* low_;
    int64_t bit_ = 0;  // from there on, with a zero code
    int low_bits_, trim_bits_, second_half_;
    uint64_t field_;
    __m256i shuffle_, shift_, mask_;
    __m128i right_, left_, up_, below_;
    __m256i sign_;
  };
};

}  // namespace
}  // namespace ibp
