// Four 8-bit codes of a word as pairs of half floats. Device code only.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "core/narrow_floats.h"

namespace ibp {

// An e5m2 code is the upper byte of a half float. The bits of e4m3, moved there, are those of a half float too, but
// with the exponent's bias of 15, not 7: of the value times 2^-8, subnormal or not. Only its NaN is none there.
template <NarrowFloat kFormat>
struct ByteCodes;

template <>
struct ByteCodes<NarrowFloat::kE5m2> {
  static constexpr float kScale = 1.0f;  // a value is its half float times this
  __device__ __forceinline__ static uint32_t Pair(uint32_t word, int pair) {
    return __byte_perm(word, 0, pair ? 0x3424 : 0x1404);
  }
  // What is or-ed together of all words tells HasNan whether a code was NaN that Pair does not make NaN.
  __device__ __forceinline__ static uint32_t NanBits(uint32_t) { return 0; }
};

template <>
struct ByteCodes<NarrowFloat::kE4m3> {
  static constexpr float kScale = 256.0f;
  __device__ __forceinline__ static uint32_t Pair(uint32_t word, int pair) {
    const uint32_t high = __byte_perm(word, 0, pair ? 0x3424 : 0x1404);
    return (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
  }
  __device__ __forceinline__ static uint32_t NanBits(uint32_t word) { return (word & 0x7f7f7f7fu) + 0x01010101u; }
};

__device__ __forceinline__ bool HasNan(uint32_t nan_bits) { return nan_bits & 0x80808080u; }

__device__ __forceinline__ float2 FloatsOf(uint32_t pair) { return __half22float2(*reinterpret_cast<__half2*>(&pair)); }

// The first `words` words from `at` on, of a row of `row_words`; 0 for those behind its end. aligned: rows are
// multiples of 16 bytes, and so is `at`.
__device__ __forceinline__ uint4 LoadRowWords(const uint32_t* row, int32_t at, int32_t row_words, bool aligned) {
  uint4 x = make_uint4(0, 0, 0, 0);
  if (at >= row_words) return x;
  if (aligned) return __ldcs(reinterpret_cast<const uint4*>(row + at));
  x.x = row[at];
  if (at + 1 < row_words) x.y = row[at + 1];
  if (at + 2 < row_words) x.z = row[at + 2];
  if (at + 3 < row_words) x.w = row[at + 3];
  return x;
}

}  // namespace ibp
