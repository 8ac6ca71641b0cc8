// Bags as kernels see them, and how values are pooled and written. Device code only.
#pragma once

#include <cuda_fp16.h>

#include "cuda/places.cuh"
#include "cuda/pool_request.h"

namespace ibp {

// Of this bag, counted over all features. Offsets come from outside and are not checked: whatever they are, the result
// is within the ids.
__device__ __forceinline__ int64_t BagStart(const PoolRequest& pool, int64_t bag) {
  if (!pool.offsets_dev) return min(bag * pool.bag_ids, pool.num_ids);
  if (bag >= pool.num_offsets) return pool.num_ids;
  const int64_t start = pool.offsets_are_int64 ? static_cast<const int64_t*>(pool.offsets_dev)[bag]
                                               : static_cast<const int32_t*>(pool.offsets_dev)[bag];
  return max(int64_t{0}, min(start, pool.num_ids));
}

// The ids of one feature that this launch is about.
__device__ __forceinline__ int64_t FirstId(const PoolRequest& pool, int32_t key) {
  return BagStart(pool, key * pool.num_bags + pool.first_bag);
}
__device__ __forceinline__ int64_t EndId(const PoolRequest& pool, int32_t key) {
  return BagStart(pool, key * pool.num_bags + pool.first_bag + pool.part_bags);
}

__device__ __forceinline__ float PoolNext(PoolMode mode, bool is_first, float before, float next) {
  if (mode == PoolMode::kMax) return is_first ? next : PoolMax(before, next);
  return __fadd_rn(before, next);
}

// What a bag comes to, of `count` rows.
__device__ __forceinline__ float PoolResult(PoolMode mode, float pooled, int32_t count) {
  return mode == PoolMode::kMean && count > 1 ? __fdiv_rn(pooled, static_cast<float>(count)) : pooled;
}

// The bits of a value as it is written, in the lower bytes.
template <PoolType kType>
__device__ __forceinline__ uint32_t RoundPooled(float value) {
  if (value != value) return CanonicalNan(kType);
  const uint32_t bits = __float_as_uint(value);
  if (kType == PoolType::kFloat32) return bits;
  if (kType == PoolType::kBfloat16) return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return __half_as_ushort(__float2half_rn(value));
}

template <PoolType kType>
__device__ __forceinline__ float FloatOfBits(uint32_t bits) {
  if (kType == PoolType::kFloat32) return __uint_as_float(bits);
  if (kType == PoolType::kBfloat16) return __uint_as_float(bits << 16);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

template <PoolType kType>
__device__ __forceinline__ void StorePooled(uint8_t* out, int64_t column, float value) {
  if (kType == PoolType::kFloat32) {
    reinterpret_cast<uint32_t*>(out)[column] = RoundPooled<kType>(value);
  } else {
    reinterpret_cast<uint16_t*>(out)[column] = static_cast<uint16_t>(RoundPooled<kType>(value));
  }
}

}  // namespace ibp
