// Codec "dict" with AVX-512 (VBMI and VBMI2): decodes values of 16 bits, and float32 and what has the same parts, 64 at
// a time. Fields of 1 to 3 bits become bytes with one permutation and one shift, one shuffle turns codes into symbols,
// and an expansion puts the symbols of the escape codes, found in the same way, among them. Where the low bits are
// whole bytes, one more permutation puts symbols on top of them; else they become words as codes become bytes.
// Everything else takes dict_row_avx2.h.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "cpu/dict_row_avx2.h"

static_assert(ibp::kMaxColumnCodeBits == 3, "eight entries a column");

namespace ibp {
namespace {

// The longest loads of decoding are whole registers. They start at the limit at the latest: there, where the last group
// has no low bits.
static_assert(sizeof(__m512i) <= kSlackBytes);

// Fields of 1 to 3 bits, 64 of them one after the other in up to 25 bytes: to bytes.
struct FieldBytes {
  alignas(64) uint8_t bytes[64];  // for each word those that hold its eight fields
  uint64_t shifts = 0, mask = 0;  // a byte for each field

  explicit FieldBytes(int bits) {
    for (int i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(i / 8 * bits + i % 4);
    for (int i = 0; i < 8; ++i) {
      shifts |= static_cast<uint64_t>(i * bits) << (8 * i);
      mask |= uint64_t{LowMask<uint8_t>(bits)} << (8 * i);
    }
  }
  static const FieldBytes& Of(int bits) {
    static const FieldBytes of_bits[] = {FieldBytes(1), FieldBytes(2), FieldBytes(3)};
    return of_bits[bits - 1];
  }

  // The fields that start `skip` bits, at most 7, after the first of 32 bytes.
  __m512i Unpack(const uint8_t* packed, int skip) const {
    const __m512i loaded = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed)));
    const __m512i words = _mm512_permutexvar_epi8(_mm512_load_si512(bytes), loaded);
    const uint64_t all_skip = FieldLowBits<uint64_t>(8) * static_cast<uint64_t>(skip);
    const __m512i fields = _mm512_multishift_epi64_epi8(Broadcast(shifts + all_skip), words);
    return _mm512_and_si512(fields, Broadcast(mask));
  }
  static __m512i Broadcast(uint64_t word) { return _mm512_set1_epi64(static_cast<int64_t>(word)); }
};

// Fields of up to 14 bits, 32 of them one after the other in up to 56 bytes: to words of 16 bits.
struct FieldWords {
  static constexpr int kMaxBits = 14, kMaxBitsAnywhere = 13;  // that start at a byte; at any bit

  alignas(64) uint8_t bytes[64];   // for each 64-bit word those that hold its four fields
  alignas(64) uint8_t shifts[64];  // two bytes for each field
  int16_t mask;

  explicit FieldWords(int bits) : mask(static_cast<int16_t>(LowMask<uint16_t>(bits))) {
    for (int i = 0; i < 64; ++i) {
      const int first = i / 8 * 4 * bits;  // bit where the fields of a word start
      bytes[i] = static_cast<uint8_t>(first / 8 + i % 8);
      shifts[i] = static_cast<uint8_t>(first % 8 + i % 8 / 2 * bits + i % 2 * 8);
    }
  }
  static const FieldWords& Of(int bits) {
    static const FieldWords of_bits[] = {FieldWords(1),  FieldWords(2),  FieldWords(3),  FieldWords(4), FieldWords(5),
                                         FieldWords(6),  FieldWords(7),  FieldWords(8),  FieldWords(9), FieldWords(10),
                                         FieldWords(11), FieldWords(12), FieldWords(13), FieldWords(14)};
    return of_bits[bits - 1];
  }

  // The fields that start `skip` bits, at most 7, after the first of 64 bytes. skip > 0: of at most kMaxBitsAnywhere.
  __m512i Unpack(const uint8_t* packed, int skip) const {
    const __m512i words = _mm512_permutexvar_epi8(_mm512_load_si512(bytes), _mm512_loadu_si512(packed));
    const __m512i from = _mm512_add_epi8(_mm512_load_si512(shifts), _mm512_set1_epi8(static_cast<char>(skip)));
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(from, words), _mm512_set1_epi16(mask));
  }
};
// The four fields of a word, the bits before the first one's and those that are skipped, are within 64 bits.
static_assert(4 * FieldWords::kMaxBits + 4 <= 64 && 4 * FieldWords::kMaxBitsAnywhere + 4 + 7 <= 64);

template <typename Isa>
struct DictRowAvx512 : DictRowAvx2<Isa> {
  using Avx2 = DictRowAvx2<Isa>;
  static constexpr int kGroup = 64;  // values

  static bool Decode(const RowCodec& any, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    const DictLayout& layout = codec.layout;
    const bool short_codes = layout.code_bits <= kMaxColumnCodeBits, zeros = layout.zero_code;
    const bool whole_bytes = layout.symbol_bits == 8 && layout.trim_bits == 0;
    const int most_bits = zeros ? FieldWords::kMaxBitsAnywhere : FieldWords::kMaxBits;
    if (short_codes && whole_bytes && layout.value_bits == 16) {
      return zeros ? DecodeGroups<uint16_t, true>(codec, payload, limit_bytes, row)
                   : DecodeGroups<uint16_t, false>(codec, payload, limit_bytes, row);
    }
    if (short_codes && whole_bytes && layout.value_bits == 32) {
      return zeros ? DecodeGroups<uint32_t, true>(codec, payload, limit_bytes, row)
                   : DecodeGroups<uint32_t, false>(codec, payload, limit_bytes, row);
    }
    if (short_codes && layout.value_bits == 16 && layout.symbol_bits <= 8 && layout.low_bits() <= most_bits) {
      return zeros ? DecodeGroups<uint16_t, true, false>(codec, payload, limit_bytes, row)
                   : DecodeGroups<uint16_t, false, false>(codec, payload, limit_bytes, row);
    }
    return Avx2::Decode(any, payload, limit_bytes, row);
  }

  // The symbols of the escaped values, taken group by group.
  class Escapes {
   public:
    Escapes(const DictCodec& codec, const uint8_t* payload, int64_t escape_codes, int64_t limit_bytes)
        : payload_(payload),
          limit_bytes_(limit_bytes),
          bit_(8 * escape_codes),
          fields_(FieldBytes::Of(kEscapeCodeBits)),
          symbol_mask_(_mm512_set1_epi8(static_cast<char>(LowMask<uint8_t>(codec.layout.symbol_bits)))) {
      symbols_ = Broadcast(codec.escape_symbols);
    }

    // `symbols` with those of the escaped values in the bytes that `escaped` marks. plain_start() says where the
    // payload's plain symbols start; it is asked once, if there is one at all.
    template <typename PlainStart>
    bool Take(__mmask64 escaped, const PlainStart& plain_start, __m512i& symbols) {
      const int count = static_cast<int>(_mm_popcnt_u64(escaped));
      const int64_t first = bit_;
      bit_ += kEscapeCodeBits * count;
      if (bit_ > 8 * limit_bytes_) return false;
      const __m512i codes = fields_.Unpack(payload_ + first / 8, static_cast<int>(first % 8));
      __m512i in_order = _mm512_shuffle_epi8(symbols_, codes);
      const __mmask64 plain =
          _mm512_mask_cmpeq_epi8_mask(LowMask<uint64_t>(count), codes, _mm512_set1_epi8(kPlainSymbol));
      if (plain) {
        if (next_plain_ < 0) next_plain_ = plain_start();
        const int64_t from = next_plain_, number = _mm_popcnt_u64(plain);
        next_plain_ += number;
        if (next_plain_ > limit_bytes_) return false;
        const __m512i loaded = _mm512_maskz_loadu_epi8(LowMask<uint64_t>(static_cast<int>(number)), payload_ + from);
        in_order = _mm512_mask_expand_epi8(in_order, plain, _mm512_and_si512(loaded, symbol_mask_));
      }
      symbols = _mm512_mask_expand_epi8(symbols, escaped, in_order);
      return true;
    }

   private:
    const uint8_t* payload_;
    int64_t limit_bytes_, bit_;
    int64_t next_plain_ = -1;
    const FieldBytes& fields_;
    __m512i symbols_, symbol_mask_;
  };

  static __m512i Broadcast(const uint8_t* sixteen_bytes) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen_bytes)));
  }

  // Indices into [low bytes, symbols]: those of the first values of a group, the symbol in the top byte. Of the next
  // ones, kValues more for each symbol.
  template <typename Word>
  struct Places {
    static constexpr int kBytes = sizeof(Word), kValues = 64 / kBytes;
    alignas(64) uint8_t first[64], step[64];

    Places() {
      for (int byte = 0; byte < 64; ++byte) {
        const int value = byte / kBytes, part = byte % kBytes;
        const bool top = part == kBytes - 1;
        first[byte] = static_cast<uint8_t>(top ? 64 + value : value * (kBytes - 1) + part);
        // Of bfloat16, whose low bytes fill a whole register, the low ones move on, too.
        step[byte] = static_cast<uint8_t>(top || kBytes == 2 ? kValues : 0);
      }
    }
  };

  // Puts symbols, a byte each, on top of the low bits, which are no whole bytes; 32 values of 16 bits each.
  class Joiner {
   public:
    explicit Joiner(const DictLayout& layout)
        : sign_bits_(layout.sign_low ? 1 : 0),
          trim_bits_(layout.trim_bits),
          below_(_mm_cvtsi32_si128(16 - layout.symbol_bits)),
          sign_count_(_mm_cvtsi32_si128(sign_bits_)),
          up_(_mm_cvtsi32_si128(sign_bits_ + trim_bits_)),
          sign_(_mm512_set1_epi16(static_cast<int16_t>(sign_bits_))) {}

    __m512i operator()(__m256i symbols, __m512i low) const {
      if (trim_bits_) {
        low = _mm512_or_si512(_mm512_sll_epi16(_mm512_srl_epi16(low, sign_count_), up_), _mm512_and_si512(low, sign_));
      }
      const __m512i rotated = _mm512_or_si512(_mm512_sll_epi16(_mm512_cvtepu8_epi16(symbols), below_), low);
      return _mm512_shrdv_epi16(rotated, rotated, sign_);
    }

   private:
    int sign_bits_, trim_bits_;
    __m128i below_, sign_count_, up_;
    __m512i sign_;
  };

  // kWholeBytes: symbols have 8 bits, and all others are low bits.
  template <typename Word, bool kZeroCode, bool kWholeBytes = true>
  static bool DecodeGroups(const DictCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    constexpr int kBytes = sizeof(Word), kValues = 64 / kBytes;
    const DictLayout& layout = codec.layout;
    const int code_bits = layout.code_bits, num_values = layout.num_values;
    if (layout.codes_bytes() > limit_bytes) return false;
    const FieldBytes& fields = FieldBytes::Of(code_bits);
    auto codes_of = [&](int32_t first) { return fields.Unpack(payload + first / 8 * code_bits, 0); };
    auto valid_of = [&](int32_t first) { return LowMask<uint64_t>(std::min(num_values - first, kGroup)); };
    const __m512i escape = _mm512_set1_epi8(static_cast<char>(layout.escape()));
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(layout.num_symbols()));

    DictPlanes planes;
    planes.values_with_low = num_values;
    if constexpr (kZeroCode) {
      planes.values_with_low = 0;
      for (int32_t first = 0; first < num_values; first += kGroup) {
        const __mmask64 present = _mm512_mask_cmpneq_epi8_mask(valid_of(first), codes_of(first), zero);
        planes.values_with_low += static_cast<int32_t>(_mm_popcnt_u64(present));
      }
    }
    SetPlanes(layout, planes);
    if (planes.bytes > limit_bytes) return false;
    auto plain_start = [&] {
      for (int32_t first = 0; first < num_values; first += kGroup) {
        const __mmask64 escaped = _mm512_mask_cmpeq_epi8_mask(valid_of(first), codes_of(first), escape);
        planes.escapes += static_cast<int32_t>(_mm_popcnt_u64(escaped));
      }
      SetPlanes(layout, planes);
      return planes.plain;
    };
    Escapes escapes(codec, payload, planes.escape_codes, limit_bytes);
    const __m512i dictionary = Broadcast(codec.shared_symbols);
    static const Places<Word> places;
    const __m512i first_places = _mm512_load_si512(places.first), next_places = _mm512_load_si512(places.step);
    const __m512i rotated_by = kBytes == 4 ? _mm512_set1_epi32(layout.sign_low) : _mm512_set1_epi16(layout.sign_low);
    const uint8_t* low_bytes = payload + layout.codes_bytes();
    const int low_bits = layout.low_bits();
    const FieldWords& low_fields = FieldWords::Of(kWholeBytes ? 1 : low_bits);
    const Joiner join(layout);
    int64_t low_bit = 0;  // unless the low bits are whole bytes
    for (int32_t first = 0; first < num_values; first += kGroup) {
      const __mmask64 valid = valid_of(first);
      const __m512i codes = codes_of(first);
      __m512i symbols = layout.per_column ? ColumnSymbols(codec, first, codes) : _mm512_shuffle_epi8(dictionary, codes);
      if (!escapes.Take(_mm512_mask_cmpeq_epi8_mask(valid, codes, escape), plain_start, symbols)) return false;
      const __mmask64 present = kZeroCode ? _mm512_mask_cmpneq_epi8_mask(valid, codes, zero) : valid;
      __m512i low, at = first_places;
      if constexpr (kBytes == 2 && kWholeBytes) {
        low = _mm512_loadu_si512(low_bytes);
        if constexpr (kZeroCode) low = _mm512_maskz_expand_epi8(present, low);
        low_bytes += _mm_popcnt_u64(present);
      }
      const int count = std::min(num_values - first, kGroup);
      for (int value = 0; value < count; value += kValues) {
        if constexpr (kBytes == 4) {
          low = _mm512_loadu_si512(low_bytes);
          const uint64_t here = (present >> value) & 0xffff;
          // The three bytes of each value that has them, in the order of all values.
          if constexpr (kZeroCode) low = _mm512_maskz_expand_epi8(ThreeTimes(here), low);
          low_bytes += 3 * _mm_popcnt_u64(here);
        }
        __m512i decoded;
        if constexpr (kWholeBytes) {
          const __m512i rotated = _mm512_permutex2var_epi8(low, at, symbols);
          at = _mm512_add_epi8(at, next_places);
          decoded =
              kBytes == 4 ? _mm512_rorv_epi32(rotated, rotated_by) : _mm512_shrdv_epi16(rotated, rotated, rotated_by);
        } else {
          const __mmask32 here = static_cast<__mmask32>(present >> value);
          low = low_fields.Unpack(low_bytes + low_bit / 8, static_cast<int>(low_bit % 8));
          if constexpr (kZeroCode) low = _mm512_maskz_expand_epi16(here, low);
          low_bit += int64_t{low_bits} * _mm_popcnt_u32(here);
          const __m256i half = value == 0 ? _mm512_castsi512_si256(symbols) : _mm512_extracti64x4_epi64(symbols, 1);
          decoded = join(half, low);
        }
        uint8_t* out = row + static_cast<int64_t>(first + value) * kBytes;
        if (count - value >= kValues) {
          _mm512_storeu_si512(out, decoded);
        } else {
          _mm512_mask_storeu_epi8(out, LowMask<uint64_t>((count - value) * kBytes), decoded);
        }
      }
    }
    return true;
  }

  // Each of 16 bits three times.
  static uint64_t ThreeTimes(uint64_t bits) {
    const uint64_t spread = Isa::Deposit(bits, 0x0000249249249249);  // every third bit
    return spread * 7;
  }

  // With a dictionary per column. Of columns that the row does not have, anything.
  static __m512i ColumnSymbols(const DictCodec& codec, int32_t first, __m512i codes) {
    // 16 columns of eight symbols are two registers.
    const __m512i column = _mm512_set4_epi32(0x78706860, 0x58504840, 0x38302820, 0x18100800);
    const __m512i index = _mm512_or_si512(codes, column);
    const uint8_t* dictionaries = codec.column_symbols.data() + (static_cast<int64_t>(first) << kMaxColumnCodeBits);
    __m512i symbols = _mm512_setzero_si512();
    for (int value = 0; value < std::min(codec.layout.num_values - first, kGroup); value += 16, dictionaries += 128) {
      const __m512i of_columns = _mm512_maskz_permutex2var_epi8(
          uint64_t{0xffff} << value, _mm512_loadu_si512(dictionaries), index, _mm512_loadu_si512(dictionaries + 64));
      symbols = _mm512_or_si512(symbols, of_columns);
    }
    return symbols;
  }

  static constexpr RowOps Ops() {
    RowOps ops = Avx2::Ops();
    ops.decode = &Decode;
    return ops;
  }
};

}  // namespace
}  // namespace ibp
