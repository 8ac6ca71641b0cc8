// A row as 32-bit units, one per lane; the last one may be partial. Device code only.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/ibp_tables.h"
#include "cuda/device_codecs.h"
#include "cuda/gather_request.h"

namespace ibp {

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ __forceinline__ uint32_t LoadUnit(const uint8_t* row, int32_t unit, int32_t row_bytes, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint32_t*>(row + 4 * unit);
  uint32_t x = 0;
  for (int byte = 0; byte < 4 && 4 * unit + byte < row_bytes; ++byte) {
    x |= static_cast<uint32_t>(row[4 * unit + byte]) << (8 * byte);
  }
  return x;
}

__device__ __forceinline__ void StoreUnit(uint8_t* row, int32_t unit, int32_t row_bytes, bool aligned, uint32_t x) {
  if (aligned) {
    *reinterpret_cast<uint32_t*>(row + 4 * unit) = x;
    return;
  }
  for (int byte = 0; byte < 4 && 4 * unit + byte < row_bytes; ++byte) {
    row[4 * unit + byte] = static_cast<uint8_t>(x >> (8 * byte));
  }
}

// Whether all rows that start at base, row_bytes apart, can be read as whole 32-bit units.
__host__ __device__ __forceinline__ bool RowsAreAligned(const void* base, int32_t row_bytes) {
  return row_bytes % 4 == 0 && reinterpret_cast<uintptr_t>(base) % 4 == 0;
}

__device__ __forceinline__ int64_t ReadId(const GatherRequest& request, int64_t i) {
  if (!request.ids_dev) return request.first_id + i;
  return request.ids_are_int64 ? static_cast<const int64_t*>(request.ids_dev)[i]
                               : static_cast<const int32_t*>(request.ids_dev)[i];
}

// kUnits neighbouring units, loaded and stored as one.
template <int kUnits>
struct alignas(4 * kUnits) UnitVector {
  uint32_t at[kUnits];
};

// One lane's columns of the tables. Read through the read-only cache; they are a few KB that every row uses.
struct UnitTable {
  const uint32_t* column;
  int32_t stride;

  __device__ UnitTable(const DeviceIbpCodec& codec, int32_t unit)
      : column(codec.tables_dev + unit), stride(TableStride(codec.layout.row_bytes)) {}
  __device__ uint32_t Get(int table) const { return __ldg(column + table * stride); }
  // The entries of units unit, ..., unit + kUnits - 1; unit is a multiple of kUnits.
  template <int kUnits>
  __device__ UnitVector<kUnits> GetVector(int table) const {
    UnitVector<kUnits> entries;
    if constexpr (kUnits == 4) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(column + table * stride));
      entries = {{x.x, x.y, x.z, x.w}};
    } else if constexpr (kUnits == 2) {
      const uint2 x = __ldg(reinterpret_cast<const uint2*>(column + table * stride));
      entries = {{x.x, x.y}};
    } else {
      entries = {{Get(table)}};
    }
    return entries;
  }
  __device__ uint32_t keep() const { return Get(kKeepTable); }
  __device__ uint32_t bitval() const { return Get(kBitvalTable); }
  __device__ uint32_t valid() const { return Get(kValidTable); }
  __device__ void Moves(uint32_t moves[kExpandSteps]) const {
#pragma unroll
    for (int s = 0; s < kExpandSteps; ++s) moves[s] = Get(kMoveTable + s);
  }
};

// Chunks of up to 32 bits lie inside a unit: `fields` of them, field_bits wide. Longer ones cover
// 2^log2_units_per_chunk units.
struct UnitChunks {
  int field_bits, fields, log2_units_per_chunk;

  __device__ explicit UnitChunks(int32_t chunk_bits) {
    field_bits = min(chunk_bits, 32);
    fields = 32 / field_bits;
    log2_units_per_chunk = chunk_bits <= 32 ? 0 : __popc(chunk_bits / 32 - 1);
  }
  __device__ int32_t units_per_chunk() const { return 1 << log2_units_per_chunk; }
  __device__ int32_t FirstChunk(int32_t unit) const { return (unit * fields) >> log2_units_per_chunk; }
  // Bit f of `bits` to all bits of field f.
  __device__ uint32_t Fill(uint32_t bits) const {
    if (fields == 1) return bits & 1 ? ~uint32_t{0} : 0;
    uint32_t filled = 0;
    for (int f = 0; f < fields; ++f) filled |= ((bits >> f) & 1) << (f * field_bits);
    return filled * LowMask<uint32_t>(field_bits);
  }
  // Bit f = whether field f of x has any bit set.
  __device__ uint32_t NonZero(uint32_t x) const {
    if (fields == 1) return x != 0;
    uint32_t bits = 0;
    for (int f = 0; f < fields; ++f) {
      bits |= static_cast<uint32_t>(((x >> (f * field_bits)) & LowMask<uint32_t>(field_bits)) != 0) << f;
    }
    return bits;
  }
};

__device__ __forceinline__ int32_t WarpInclusiveSum(int32_t x, int lane) {
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int32_t other = __shfl_up_sync(kWholeWarp, x, distance);
    if (lane >= distance) x += other;
  }
  return x;
}

__device__ __forceinline__ int32_t WarpSum(int32_t x) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance);
  return x;
}

}  // namespace ibp
