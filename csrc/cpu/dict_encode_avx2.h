// Codec "dict" with AVX2: measures and encodes eight values of 16 or 32 bits at a time, looking their codes up with one
// gather. The rest of a row, and values of other widths, take dict_row.h.
#pragma once

#include <immintrin.h>

#include "cpu/dict_row.h"

namespace ibp {
namespace {

template <typename Isa, typename Word>
struct DictEncodeAvx2 {
  static constexpr int kValues = 8;
  static constexpr int kBits = 8 * sizeof(Word);

  struct Group {
    __m256i codes, symbols, low;
    int escapes, zeros;  // a bit per value
    bool fits;
  };

  const DictLayout& layout;
  const uint8_t* code_of_symbol;
  __m128i below, trim, top;
  __m256i low_mask, trimmed_mask, symbol_mask, escape, zero_code, column_offset, column_step;

  explicit DictEncodeAvx2(const DictCodec& codec) : layout(codec.layout), code_of_symbol(codec.code_of_symbol.data()) {
    const int below_bits = kBits - layout.symbol_bits - (layout.sign_low ? 1 : 0);
    below = _mm_cvtsi32_si128(below_bits);
    trim = _mm_cvtsi32_si128(layout.trim_bits);
    top = _mm_cvtsi32_si128(kBits - 1);
    low_mask = _mm256_set1_epi32(static_cast<int>(LowMask<uint32_t>(below_bits)));
    trimmed_mask = _mm256_set1_epi32(static_cast<int>(LowMask<uint32_t>(layout.trim_bits)));
    symbol_mask = _mm256_set1_epi32(static_cast<int>(LowMask<uint32_t>(layout.symbol_bits)));
    escape = _mm256_set1_epi32(layout.escape());
    zero_code = _mm256_set1_epi32(layout.num_symbols());
    const int step = layout.per_column ? 1 << layout.symbol_bits : 0;
    column_offset = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(step));
    column_step = _mm256_set1_epi32(kValues * step);
  }

  // Whether the gather's 32-bit indices reach all of the table.
  static bool Serves(const DictCodec& codec) { return codec.code_of_symbol.size() < (size_t{1} << 31); }

  static int Mask(__m256i lanes) { return _mm256_movemask_ps(_mm256_castsi256_ps(lanes)); }

  // The kValues values from `values` on, whose tables of codes start at `offsets`.
  Group Look(const uint8_t* values, __m256i offsets) const {
    __m256i value;
    if (sizeof(Word) == 4) {
      value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
    } else {
      value = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
    }
    Group group;
    group.symbols = _mm256_and_si256(_mm256_srl_epi32(value, below), symbol_mask);
    const __m256i places = _mm256_add_epi32(group.symbols, offsets);
    group.codes = _mm256_and_si256(_mm256_i32gather_epi32(reinterpret_cast<const int*>(code_of_symbol), places, 1),
                                   _mm256_set1_epi32(255));
    group.low = _mm256_srl_epi32(_mm256_and_si256(value, low_mask), trim);
    if (layout.sign_low) group.low = _mm256_or_si256(_mm256_slli_epi32(group.low, 1), _mm256_srl_epi32(value, top));
    group.fits = _mm256_testz_si256(value, trimmed_mask);
    group.zeros = 0;
    if (layout.zero_code) {
      const __m256i is_zero = _mm256_cmpeq_epi32(value, _mm256_setzero_si256());
      group.codes = _mm256_blendv_epi8(group.codes, zero_code, is_zero);
      group.zeros = Mask(is_zero);
    }
    group.escapes = Mask(_mm256_cmpeq_epi32(group.codes, escape));
    return group;
  }

  // As DictValues::Plan.
  bool Plan(const DictCodec& codec, const uint8_t* row, DictPlanes& planes) const {
    __m256i offsets = column_offset;
    int32_t i = 0;
    for (; i + kValues <= layout.num_values; i += kValues) {
      const Group group = Look(row + static_cast<int64_t>(i) * sizeof(Word), offsets);
      if (!group.fits) return false;
      if (group.escapes) CountEscapes(codec, group, planes);
      planes.values_with_low += kValues - Isa::Count(static_cast<uint64_t>(group.zeros));
      offsets = _mm256_add_epi32(offsets, column_step);
    }
    return DictValues<Isa, Word>::PlanRest(codec, row, i, planes);
  }

  void Encode(const DictCodec& codec, const uint8_t* row, DictWriter out) const {
    const uint64_t code_mask = FieldLowBits<uint64_t>(8) * LowMask<uint64_t>(layout.code_bits);
    __m256i offsets = column_offset;
    int32_t i = 0;
    for (; i + kValues <= layout.num_values; i += kValues) {
      const Group group = Look(row + static_cast<int64_t>(i) * sizeof(Word), offsets);
      out.codes.Put(Isa::Extract(AsBytes(group.codes), code_mask), kValues * layout.code_bits);
      if (group.zeros) {
        PutNonZeros(group, out.low);
      } else {
        PutAll(group, out.low);
      }
      if (group.escapes) ForEscapes(group, [&](uint32_t symbol) { out.PutEscape(codec, symbol); });
      offsets = _mm256_add_epi32(offsets, column_step);
    }
    DictValues<Isa, Word>::EncodeRest(codec, row, i, out);
  }

 private:
  // The low byte of each lane.
  static uint64_t AsBytes(__m256i lanes) {
    const __m256i first_bytes = _mm256_set1_epi32(0x0c080400);
    const __m256i packed = _mm256_shuffle_epi8(lanes, first_bytes);
    const uint64_t low_half = static_cast<uint32_t>(_mm256_extract_epi32(packed, 0));
    const uint64_t high_half = static_cast<uint32_t>(_mm256_extract_epi32(packed, 4));
    return low_half | high_half << 32;
  }

  void PutAll(const Group& group, BitWriter& low) const {
    const int bits = layout.low_bits();
    const __m256i even = _mm256_and_si256(group.low, _mm256_set1_epi64x(0xffffffff));
    const __m256i odd = _mm256_sll_epi64(_mm256_srli_epi64(group.low, 32), _mm_cvtsi32_si128(bits));
    alignas(32) uint64_t pairs[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs), _mm256_or_si256(even, odd));
    for (const uint64_t pair : pairs) low.Put(pair, 2 * bits);
  }

  void PutNonZeros(const Group& group, BitWriter& low) const {
    alignas(32) uint32_t parts[kValues];
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts), group.low);
    for (int mask = ~group.zeros & 0xff; mask; mask &= mask - 1) {
      low.Put(parts[__builtin_ctz(static_cast<unsigned>(mask))], layout.low_bits());
    }
  }

  template <typename Body>
  static void ForEscapes(const Group& group, const Body& body) {
    alignas(32) uint32_t symbols[kValues];
    _mm256_store_si256(reinterpret_cast<__m256i*>(symbols), group.symbols);
    for (int mask = group.escapes; mask; mask &= mask - 1) {
      body(symbols[__builtin_ctz(static_cast<unsigned>(mask))]);
    }
  }

  static void CountEscapes(const DictCodec& codec, const Group& group, DictPlanes& planes) {
    planes.escapes += Isa::Count(static_cast<uint64_t>(group.escapes));
    ForEscapes(group,
               [&](uint32_t symbol) { planes.plain_symbols += codec.escape_code_of_symbol[symbol] == kPlainSymbol; });
  }
};

template <typename Isa>
struct DictRowEncodeAvx2 {
  static int32_t Measure(const RowCodec& any, const uint8_t* row, uint64_t* scratch) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    DictPlanes planes;
    bool has_payload;
    if (codec.layout.value_bits == 32 && DictEncodeAvx2<Isa, uint32_t>::Serves(codec)) {
      has_payload = DictEncodeAvx2<Isa, uint32_t>(codec).Plan(codec, row, planes);
    } else if (codec.layout.value_bits == 16 && DictEncodeAvx2<Isa, uint16_t>::Serves(codec)) {
      has_payload = DictEncodeAvx2<Isa, uint16_t>(codec).Plan(codec, row, planes);
    } else {
      return DictRow<Isa>::Measure(any, row, scratch);
    }
    SavePlanes(planes, scratch);
    return has_payload ? static_cast<int32_t>(planes.bytes) : codec.row_bytes;
  }

  static void Encode(const RowCodec& any, const uint8_t* row, const uint64_t* scratch, uint8_t* payload,
                     int32_t payload_bytes) {
    const DictCodec& codec = static_cast<const DictCodec&>(any);
    const DictWriter out(codec.layout, scratch, payload);
    if (codec.layout.value_bits == 32 && DictEncodeAvx2<Isa, uint32_t>::Serves(codec)) {
      DictEncodeAvx2<Isa, uint32_t>(codec).Encode(codec, row, out);
    } else if (codec.layout.value_bits == 16 && DictEncodeAvx2<Isa, uint16_t>::Serves(codec)) {
      DictEncodeAvx2<Isa, uint16_t>(codec).Encode(codec, row, out);
    } else {
      DictRow<Isa>::Encode(any, row, scratch, payload, payload_bytes);
    }
  }
};

}  // namespace
}  // namespace ibp
