// Codec "dict" with AVX2. With one dictionary for the row, 32 values at a time: codes become bytes with two shuffles,
// two multiplications and a pack, one shuffle turns them into symbols, and the low bits are put below them. With one
// per column, and where a float32 has other parts than 8 and 24 bits, eight at a time: codes are spread to bytes with
// PDEP, symbols are looked up with a gather or a shuffle. Everything else takes dict_row.h.
#pragma once

#include <immintrin.h>

#include "cpu/dict_encode_avx2.h"
#include "cpu/dict_row.h"
#include "cpu/dict_row_avx2_shared.h"

namespace ibp {
namespace {

constexpr int kGroup = 8;  // values

// The low bits of four values of 32 bits are in 16 bytes from their first byte on, if they are this many at most.
constexpr int kMaxLowBits32 = 25;
// The longest loads of decoding start before the end of the low bits: 16 bytes, and 16 more from where those of the
// second four values start.
static_assert(4 * kMaxLowBits32 / 8 + sizeof(__m128i) <= kSlackBytes);

template <typename Isa>
struct DictRowAvx2 : DictRow<Isa> {
  static bool Decode(const RowCodec& any, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    const DictLayout& layout = codec.layout;
    if (layout.symbol_bits <= 8 && !layout.per_column) {
      const bool whole_bytes = layout.symbol_bits == 8 && layout.trim_bits == 0;
      if (layout.value_bits == 32 && whole_bytes)
        return DictRowAvx2Shared<Isa>::Decode32(codec, payload, limit_bytes, row);
      if (layout.value_bits == 16 && layout.low_bits() <= kMaxLowBits16) {
        return DictRowAvx2Shared<Isa>::Decode16(codec, payload, limit_bytes, row);
      }
    }
    if (layout.value_bits != 32 || layout.low_bits() > kMaxLowBits32 || layout.zero_code || layout.symbol_bits > 8) {
      return DictRow<Isa>::Decode(any, payload, limit_bytes, row);
    }
    DictPlanes planes;
    planes.values_with_low = layout.num_values;
    SetPlanes(layout, planes);
    if (planes.bytes > limit_bytes) return false;
    Escapes escapes(codec, payload, planes.escape_codes, limit_bytes);
    return layout.per_column ? Decode32<true>(codec, payload, escapes, row)
                             : Decode32<false>(codec, payload, escapes, row);
  }

  // The codes of values [first, first + kGroup), one in each byte.
  static uint64_t Codes(const uint8_t* codes, int32_t first, int code_bits) {
    const uint64_t packed = Load<uint64_t>(codes + first / kGroup * code_bits);
    return Isa::Deposit(packed, FieldLowBits<uint64_t>(8) * LowMask<uint64_t>(code_bits));
  }

  static __m256i FromBytes(uint64_t bytes) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)));
  }

  static __m128i SharedDictionary(const DictCodec& codec) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codec.shared_symbols));
  }

  // The symbols of the escaped values, taken group by group; symbols of at most 8 bits.
  class Escapes {
   public:
    Escapes(const DictCodec& codec, const uint8_t* payload, int64_t escape_codes, int64_t limit_bytes)
        : codec_(codec),
          payload_(payload),
          limit_bytes_(limit_bytes),
          bit_(8 * escape_codes),
          escape_(FieldLowBits<uint64_t>(8) * static_cast<uint64_t>(codec.layout.escape())),
          symbols_(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codec.escape_symbols))) {}

    // codes: of a group, a byte each; those outside the mask `valid` are none. Puts the symbols of the escaped ones
    // into their bytes of `symbols`, where the others get 0. Returns false if the payload does not have them.
    bool Take(uint64_t codes, uint64_t valid, uint64_t& symbols) {
      symbols = 0;
      const __m128i equal = _mm_cmpeq_epi8(AsVector(codes), AsVector(escape_));
      const uint64_t escaped = AsWord(equal) & valid;
      if (escaped == 0) return true;
      const int64_t first = bit_;
      bit_ += kEscapeCodeBits * (Isa::Count(escaped) / 8);
      if (bit_ > 8 * limit_bytes_) return false;
      const uint64_t packed = Load<uint64_t>(payload_ + first / 8) >> (first % 8);
      const __m128i escape_codes = AsVector(Isa::Deposit(packed, escaped & kEscapeCodeMask));
      symbols = AsWord(_mm_shuffle_epi8(symbols_, escape_codes)) & escaped;
      const uint64_t plain = AsWord(_mm_cmpeq_epi8(escape_codes, AsVector(kEscapeCodeMask))) & escaped;
      return plain == 0 || TakePlain(plain, symbols);
    }

   private:
    static constexpr uint64_t kEscapeCodeMask = FieldLowBits<uint64_t>(8) * kPlainSymbol;

    static __m128i AsVector(uint64_t bytes) { return _mm_cvtsi64_si128(static_cast<int64_t>(bytes)); }
    static uint64_t AsWord(__m128i bytes) { return static_cast<uint64_t>(_mm_cvtsi128_si64(bytes)); }

    // The symbols that are written out, for the bytes of the mask `plain`, whose escape dictionary entry is 0.
    bool TakePlain(uint64_t plain, uint64_t& symbols) {
      if (next_plain_ < 0) next_plain_ = PlainStart();
      while (plain) {
        if (next_plain_ >= limit_bytes_) return false;
        const int shift = __builtin_ctzll(plain);
        const uint8_t symbol = payload_[next_plain_++] & LowMask<uint8_t>(codec_.layout.symbol_bits);
        symbols |= uint64_t{symbol} << shift;
        plain ^= uint64_t{0xff} << shift;
      }
      return true;
    }

    // They are few, and most rows have none, so that the row's escapes are not counted until one comes.
    int64_t PlainStart() const {
      const DictLayout& layout = codec_.layout;
      DictPlanes planes;
      planes.values_with_low = layout.num_values;
      for (int32_t i = 0; i < layout.num_values; ++i) {
        planes.escapes += CodeAt(payload_, i, layout.code_bits) == layout.escape();
      }
      SetPlanes(layout, planes);
      return planes.plain;
    }

    const DictCodec& codec_;
    const uint8_t* payload_;
    int64_t limit_bytes_, bit_;
    int64_t next_plain_ = -1;
    uint64_t escape_;
    __m128i symbols_;
  };

  // Calls group(first, valid, out) for every group of values of the row: it writes kGroup values to out, of which the
  // row has those whose bytes are in `valid`, and returns false for a damaged payload. The row's last group may be
  // shorter; it goes through a buffer.
  template <typename Word, typename Group>
  static bool ForGroups(const DictLayout& layout, uint8_t* row, const Group& group) {
    int32_t first = 0;
    for (; first + kGroup <= layout.num_values; first += kGroup, row += kGroup * sizeof(Word)) {
      if (!group(first, ~uint64_t{0}, row)) return false;
    }
    if (const int left = layout.num_values - first) {
      uint8_t values[kGroup * sizeof(Word)];
      if (!group(first, LowMask<uint64_t>(8 * left), values)) return false;
      std::memcpy(row, values, sizeof(Word) * static_cast<size_t>(left));
    }
    return true;
  }

  // The symbols of a group with a shared dictionary, a byte each in the lower half.
  static bool SharedSymbols(const DictCodec& codec, const uint8_t* payload, __m128i dictionary, int32_t first,
                            uint64_t valid, Escapes& escapes, __m128i& symbols) {
    const uint64_t codes = Codes(payload, first, codec.layout.code_bits);
    uint64_t escaped;
    if (!escapes.Take(codes, valid, escaped)) return false;
    symbols = _mm_or_si128(_mm_shuffle_epi8(dictionary, _mm_cvtsi64_si128(static_cast<int64_t>(codes))),
                           _mm_cvtsi64_si128(static_cast<int64_t>(escaped)));
    return true;
  }

  template <bool kPerColumn>
  static bool Decode32(const DictCodec& codec, const uint8_t* payload, Escapes& escapes, uint8_t* row) {
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
    return ForGroups<uint32_t>(layout, row, [&](int32_t first, uint64_t valid, uint8_t* out) {
      __m256i symbols;
      if constexpr (kPerColumn) {
        const uint64_t codes = Codes(payload, first, code_bits);
        uint64_t escaped;
        if (!escapes.Take(codes, valid, escaped)) return false;
        // 16-bit entries, loaded as 32 bits.
        const __m256i columns = _mm256_add_epi32(_mm256_set1_epi32(first), lanes);
        const __m256i entry = _mm256_add_epi32(_mm256_slli_epi32(columns, code_bits), FromBytes(codes));
        symbols = _mm256_i32gather_epi32(entries, _mm256_min_epi32(entry, last_entry), 2);
        symbols = _mm256_or_si256(_mm256_and_si256(symbols, _mm256_set1_epi32(0xffff)), FromBytes(escaped));
      } else {
        __m128i bytes;
        if (!SharedSymbols(codec, payload, dictionary, first, valid, escapes, bytes)) return false;
        symbols = _mm256_cvtepu8_epi32(bytes);
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
      return true;
    });
  }

  static constexpr RowOps Ops() {
    return RowOps{&DictRowEncodeAvx2<Isa>::Measure, &DictRowEncodeAvx2<Isa>::Encode, &Decode};
  }
};

}  // namespace
}  // namespace ibp
