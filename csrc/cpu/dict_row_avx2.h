// Codec "dict" with AVX2: decodes eight values of 16 or 32 bits at a time where every value has low bits. Codes are
// spread to bytes with PDEP and looked up with one shuffle (one dictionary for the row) or one gather (one per column);
// the low bits of eight values always start at a whole byte. Everything else takes dict_row.h.
#pragma once

#include <immintrin.h>

#include "cpu/dict_encode_avx2.h"
#include "cpu/dict_row.h"

namespace ibp {
namespace {

constexpr int kGroup = 8;  // values

template <typename Isa>
struct DictRowAvx2 : DictRow<Isa> {
  static bool Serves(const DictLayout& layout) {
    const bool width =
        (layout.value_bits == 32 && layout.low_bits() <= 25) || (layout.value_bits == 16 && layout.low_bits() <= 14);
    return width && !layout.zero_code && layout.symbol_bits <= 8 && (layout.value_bits == 32 || !layout.per_column);
  }

  static bool Decode(const RowCodec& any, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    const DictLayout& layout = codec.layout;
    if (!Serves(layout)) return DictRow<Isa>::Decode(any, payload, limit_bytes, row);
    DictPlanes planes;
    planes.values_with_low = layout.num_values;
    SetPlanes(layout, planes);
    if (planes.bytes > limit_bytes) return false;
    const int64_t most_escapes = (limit_bytes - planes.bytes) / layout.symbol_bytes();
    const uint8_t* tail = payload + planes.tail;
    const bool whole_bytes = layout.symbol_bits == 8 && layout.trim_bits == 0 && layout.sign_low && !layout.per_column;
    if (layout.value_bits == 16) {
      return whole_bytes ? DecodeBfloat16(codec, payload, tail, most_escapes, row)
                         : Decode16(codec, payload, tail, most_escapes, row);
    }
    if (whole_bytes) return DecodeFloat32(codec, payload, tail, most_escapes, row);
    return layout.per_column ? Decode32<true>(codec, payload, tail, most_escapes, row)
                             : Decode32<false>(codec, payload, tail, most_escapes, row);
  }

  // The codes of values [first, first + kGroup), one in each byte.
  static uint64_t Codes(const uint8_t* codes, int32_t first, int code_bits) {
    const uint64_t packed = Load<uint64_t>(codes + first / kGroup * code_bits);
    return Isa::Deposit(packed, FieldLowBits<uint64_t>(8) * LowMask<uint64_t>(code_bits));
  }

  static __m128i SharedDictionary(const DictCodec& codec) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codec.shared_symbols));
  }

  static int EscapeMask(__m128i codes, int escape) {
    return _mm_movemask_epi8(_mm_cmpeq_epi8(codes, _mm_set1_epi8(static_cast<char>(escape))));
  }

  // Adds the escaped symbols of a group of values to what was written for them, where they are 0 so far.
  template <typename Word>
  static bool AddEscapes(int mask, const DictLayout& layout, const uint8_t* tail, int64_t most_escapes, int64_t& taken,
                         uint8_t* values) {
    const int below = layout.value_bits - layout.symbol_bits - (layout.sign_low ? 1 : 0);
    for (; mask; mask &= mask - 1) {
      if (taken == most_escapes) return false;
      const uint32_t symbol = tail[taken++] & LowMask<uint32_t>(layout.symbol_bits);
      uint8_t* value = values + sizeof(Word) * static_cast<size_t>(__builtin_ctz(static_cast<unsigned>(mask)));
      const Word with_symbol = static_cast<Word>(Load<Word>(value) | (symbol << below));
      std::memcpy(value, &with_symbol, sizeof(Word));
    }
    return true;
  }

  // Calls group(first, out) for every group of values of the row: it writes kGroup values to out and returns which of
  // them are escaped. The row's last group may be shorter; it goes through a buffer.
  template <typename Word, typename Group>
  static bool ForGroups(const DictLayout& layout, const uint8_t* tail, int64_t most_escapes, uint8_t* row,
                        const Group& group) {
    int64_t taken = 0;
    int32_t first = 0;
    for (; first + kGroup <= layout.num_values; first += kGroup, row += kGroup * sizeof(Word)) {
      const int escapes = group(first, row);
      if (escapes && !AddEscapes<Word>(escapes, layout, tail, most_escapes, taken, row)) return false;
    }
    if (const int left = layout.num_values - first) {
      uint8_t values[kGroup * sizeof(Word)];
      const int escapes = group(first, values) & static_cast<int>(LowMask<uint32_t>(left));
      if (escapes && !AddEscapes<Word>(escapes, layout, tail, most_escapes, taken, values)) return false;
      std::memcpy(row, values, sizeof(Word) * static_cast<size_t>(left));
    }
    return true;
  }

  // float32 with a shared dictionary: 8-bit symbols, 24 low bits, so that every shift is known beforehand.
  static bool DecodeFloat32(const DictCodec& codec, const uint8_t* payload, const uint8_t* tail, int64_t most_escapes,
                            uint8_t* row) {
    const DictLayout& layout = codec.layout;
    const int code_bits = layout.code_bits;
    const __m128i dictionary = SharedDictionary(codec);
    const __m256i shuffle = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codec.low_shuffle));
    const __m256i low_mask = _mm256_set1_epi32(0x00ffffff);
    const uint8_t* low_plane = payload + layout.codes_bytes();
    return ForGroups<uint32_t>(layout, tail, most_escapes, row, [&](int32_t first, uint8_t* out) {
      const __m128i codes = _mm_cvtsi64_si128(static_cast<int64_t>(Codes(payload, first, code_bits)));
      const __m256i symbols = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(dictionary, codes));
      const uint8_t* group = low_plane + first * 3;
      const __m256i packed = _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group + 12)),
                                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(group)));
      // Each value's fourth byte is the next one's; the mask drops it.
      const __m256i low = _mm256_and_si256(_mm256_shuffle_epi8(packed, shuffle), low_mask);
      const __m256i rotated = _mm256_or_si256(low, _mm256_slli_epi32(symbols, 24));
      const __m256i value = _mm256_or_si256(_mm256_srli_epi32(rotated, 1), _mm256_slli_epi32(rotated, 31));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), value);
      return EscapeMask(codes, layout.escape()) & 0xff;
    });
  }

  // bfloat16 with a shared dictionary: 8-bit symbols, 8 low bits.
  static bool DecodeBfloat16(const DictCodec& codec, const uint8_t* payload, const uint8_t* tail, int64_t most_escapes,
                             uint8_t* row) {
    const DictLayout& layout = codec.layout;
    const int code_bits = layout.code_bits;
    const __m128i dictionary = SharedDictionary(codec);
    const uint8_t* low_plane = payload + layout.codes_bytes();
    return ForGroups<uint16_t>(layout, tail, most_escapes, row, [&](int32_t first, uint8_t* out) {
      const __m128i codes = _mm_cvtsi64_si128(static_cast<int64_t>(Codes(payload, first, code_bits)));
      const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(low_plane + first));
      const __m128i rotated = _mm_unpacklo_epi8(low, _mm_shuffle_epi8(dictionary, codes));
      const __m128i value = _mm_or_si128(_mm_srli_epi16(rotated, 1), _mm_slli_epi16(rotated, 15));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), value);
      return EscapeMask(codes, layout.escape()) & 0xff;
    });
  }

  template <bool kPerColumn>
  static bool Decode32(const DictCodec& codec, const uint8_t* payload, const uint8_t* tail, int64_t most_escapes,
                       uint8_t* row) {
    const DictLayout& layout = codec.layout;
    const int low_bits = layout.low_bits(), code_bits = layout.code_bits;
    const int below = 32 - layout.symbol_bits - (layout.sign_low ? 1 : 0);
    const __m128i dictionary = kPerColumn ? __m128i{} : SharedDictionary(codec);
    const __m256i shuffle = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codec.low_shuffle));
    const __m256i shift = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codec.low_shift));
    const __m256i low_mask = _mm256_set1_epi32(static_cast<int>(LowMask<uint32_t>(low_bits)));
    const __m128i below_count = _mm_cvtsi32_si128(below), trim_count = _mm_cvtsi32_si128(layout.trim_bits);
    const __m128i sign_bits = _mm_cvtsi32_si128(layout.sign_low ? 1 : 0);
    const __m256i sign_mask = _mm256_set1_epi32(layout.sign_low ? INT32_MIN : 0);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i last_entry = _mm256_set1_epi32(static_cast<int>(layout.dictionary_entries()) - 1);
    const int* entries = reinterpret_cast<const int*>(codec.dictionary.data());
    const uint8_t* low_plane = payload + layout.codes_bytes();
    const int second_half = 4 * low_bits / 8;
    return ForGroups<uint32_t>(layout, tail, most_escapes, row, [&](int32_t first, uint8_t* out) {
      const __m128i codes = _mm_cvtsi64_si128(static_cast<int64_t>(Codes(payload, first, code_bits)));
      __m256i symbols;
      if constexpr (kPerColumn) {
        // 16-bit entries, loaded as 32 bits.
        const __m256i columns = _mm256_add_epi32(_mm256_set1_epi32(first), lanes);
        const __m256i entry = _mm256_add_epi32(_mm256_slli_epi32(columns, code_bits), _mm256_cvtepu8_epi32(codes));
        symbols = _mm256_i32gather_epi32(entries, _mm256_min_epi32(entry, last_entry), 2);
        symbols = _mm256_and_si256(symbols, _mm256_set1_epi32(0xffff));
      } else {
        symbols = _mm256_cvtepu8_epi32(_mm_shuffle_epi8(dictionary, codes));
      }
      const uint8_t* group = low_plane + first / kGroup * low_bits;
      const __m256i packed = _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(group + second_half)),
                                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(group)));
      __m256i low = _mm256_srlv_epi32(_mm256_shuffle_epi8(packed, shuffle), shift);
      low = _mm256_and_si256(low, low_mask);
      const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(low, 31), sign_mask);
      const __m256i value =
          _mm256_or_si256(_mm256_or_si256(_mm256_sll_epi32(_mm256_srl_epi32(low, sign_bits), trim_count), sign),
                          _mm256_sll_epi32(symbols, below_count));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), value);
      return EscapeMask(codes, layout.escape()) & 0xff;
    });
  }

  static bool Decode16(const DictCodec& codec, const uint8_t* payload, const uint8_t* tail, int64_t most_escapes,
                       uint8_t* row) {
    const DictLayout& layout = codec.layout;
    const int low_bits = layout.low_bits(), code_bits = layout.code_bits;
    const int below = 16 - layout.symbol_bits - (layout.sign_low ? 1 : 0);
    const __m128i dictionary = SharedDictionary(codec);
    const uint64_t spread = FieldLowBits<uint64_t>(16) * LowMask<uint64_t>(low_bits);
    const __m128i below_count = _mm_cvtsi32_si128(below), trim_count = _mm_cvtsi32_si128(layout.trim_bits);
    const __m128i sign_bits = _mm_cvtsi32_si128(layout.sign_low ? 1 : 0);
    const __m128i sign_mask = _mm_set1_epi16(layout.sign_low ? INT16_MIN : 0);
    const uint8_t* low_plane = payload + layout.codes_bytes();
    const int second_half = 4 * low_bits;
    return ForGroups<uint16_t>(layout, tail, most_escapes, row, [&](int32_t first, uint8_t* out) {
      const __m128i codes = _mm_cvtsi64_si128(static_cast<int64_t>(Codes(payload, first, code_bits)));
      const __m128i symbols = _mm_cvtepu8_epi16(_mm_shuffle_epi8(dictionary, codes));
      const uint8_t* group = low_plane + first / kGroup * low_bits;
      // 4 * 14 bits and a remainder of 4 fit the 8 bytes.
      const uint64_t half0 = Isa::Deposit(Load<uint64_t>(group), spread);
      const uint64_t half1 = Isa::Deposit(Load<uint64_t>(group + second_half / 8) >> (second_half & 7), spread);
      const __m128i low = _mm_set_epi64x(static_cast<int64_t>(half1), static_cast<int64_t>(half0));
      const __m128i sign = _mm_and_si128(_mm_slli_epi16(low, 15), sign_mask);
      const __m128i value = _mm_or_si128(_mm_or_si128(_mm_sll_epi16(_mm_srl_epi16(low, sign_bits), trim_count), sign),
                                         _mm_sll_epi16(symbols, below_count));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), value);
      return EscapeMask(codes, layout.escape()) & 0xff;
    });
  }

  static constexpr RowOps Ops() {
    return RowOps{&DictRowEncodeAvx2<Isa>::Measure, &DictRowEncodeAvx2<Isa>::Encode, &Decode};
  }
};

}  // namespace
}  // namespace ibp
