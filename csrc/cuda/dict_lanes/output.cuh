// Where the fast gather of codec "dict" puts rows: a policy of the kernel.
//
// Another output, such as rows cast to another type or sums of rows, provides the same members. The kernel promises:
//   - One warp does all of a position. Lanes store different parts of a row at the same time, in any order.
//   - Each position is stored once, except that StoreUnit may have stored anything for a row whose payload turns out to
//     be damaged, or longer than what was fetched: then StorePayload or StoreZeros comes later and counts. An output
//     that cannot write over what it has, such as a sum, has to look at FlagLongRows before StoreTile.
#pragma once

#include "cuda/dict_lanes/shared.cuh"
#include "cuda/gather_dict_any.cuh"

namespace ibp {

// Rows as they are: [num_ids, row_bytes] at request.out_dev.
template <typename Lanes>
struct RowsOutput {
  // Of a warp: the bytes of a unit.
  using Stage = uint4[kWarpSize];

  const GatherRequest& request;
  int32_t row_bytes;
  uint32_t alignment;  // all rows start at multiples of its lowest bit that is 1
  Stage& stage;        // in shared memory; not with kWhole

  __device__ __forceinline__ RowsOutput(const GatherRequest& request_, int32_t row_bytes_, Stage& stage_)
      : request(request_),
        row_bytes(row_bytes_),
        alignment(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(request.out_dev)) | row_bytes_),
        stage(stage_) {}

  // The row at a position, as the other members take it.
  __device__ __forceinline__ uint8_t* Row(uint32_t position) const {
    return request.out_dev + int64_t{position} * row_bytes;
  }

  // Called by whole warps. Lane number group_lane of a group has x, the 16 bytes of a unit that start at value
  // step_value + group_lane * kValues of the group's row; `stored`: whether it has one. The row's values end at
  // num_values.
  __device__ __forceinline__ void StoreUnit(bool stored, uint8_t* row, int32_t step_value, int32_t num_values,
                                            int group_lane, const uint4& x) const {
    const int32_t column = step_value + group_lane * Lanes::kValues, count = num_values - column;
    uint8_t* const out = row + column * Lanes::kValueBytes;
    if (Lanes::kWhole || alignment % 16 == 0) {
      if (stored && count > 0) __stcs(reinterpret_cast<uint4*>(out), x);  // past the L2 cache: 3 % faster from 1 KB on
    } else if (alignment % 8 == 0) {
      StoreStaged<uint2>(stored, row + step_value * Lanes::kValueBytes, num_values - step_value, group_lane, x);
    } else if (alignment % 4 == 0) {
      StoreStaged<uint32_t>(stored, row + step_value * Lanes::kValueBytes, num_values - step_value, group_lane, x);
    } else if (stored) {
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int half = 0; half < 8; ++half) {
        const uint32_t x16 = words[half / 2] >> (half % 2 * 16);
        if (half * 2 < count * Lanes::kValueBytes) {
          *reinterpret_cast<uint16_t*>(out + half * 2) = static_cast<uint16_t>(x16);
        }
      }
    }
  }
  // Where rows do not start at multiples of 16 bytes: neighbouring lanes store neighbouring parts, so that each store
  // fills memory sectors. `count` values from `out` on are the row's.
  template <typename Part>
  __device__ __forceinline__ void StoreStaged(bool stored, uint8_t* out, int32_t count, int group_lane,
                                              const uint4& x) const {
    constexpr int kParts = sizeof(uint4) / sizeof(Part);
    uint4* const units = stage + (threadIdx.x % kWarpSize - group_lane);
    __syncwarp();  // the unit before is read
    units[group_lane] = x;
    __syncwarp();
    const int32_t parts = count * Lanes::kValueBytes / static_cast<int32_t>(sizeof(Part));
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const int32_t at = p * Lanes::kLanes + group_lane;
      if (stored && at < parts) __stcs(reinterpret_cast<Part*>(out) + at, reinterpret_cast<const Part*>(units)[at]);
    }
  }

  // Called by whole warps. Of these, StorePayload decodes a payload of any length where it lies; it returns false for a
  // damaged one, and leaves the row unspecified.
  __device__ __forceinline__ bool StorePayload(const DeviceDictCodec& codec, uint8_t* row, const uint8_t* source,
                                               int32_t payload_limit) const {
    return DecodeInPlace<typename Lanes::Word>(codec, request, source, payload_limit, row);
  }
  // Those of `count` entries of a list that have a base, which is where the row lies. Short rows several at a time, and
  // several loads of each row: they are on their way together.
  __device__ __forceinline__ void StoreRawRows(const RowEntry* entries, int count, int lane) const {
    constexpr int kInFlight = 6;
    const int lanes = row_bytes < 512 ? 8 : kWarpSize;
    for (int i = lane / lanes; i < count; i += kWarpSize / lanes) {
      const RowEntry entry = entries[i];
      if (!entry.base) continue;
      const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(entry.base) % 4);
      const uint32_t* const words = reinterpret_cast<const uint32_t*>(entry.base - skew);
      uint8_t* const row = Row(entry.position);
      for (int32_t first = lane % lanes; first < NumUnits(row_bytes); first += kInFlight * lanes) {
        uint32_t x[kInFlight], next[kInFlight] = {};
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int32_t unit = first + k * lanes;
          if (unit < NumUnits(row_bytes)) x[k] = words[unit];
          if (unit < NumUnits(row_bytes) && skew) next[k] = words[unit + 1];
        }
#pragma unroll
        for (int k = 0; k < kInFlight; ++k) {
          const int32_t unit = first + k * lanes;
          if (unit >= NumUnits(row_bytes)) continue;
          ibp::StoreUnit(row, unit, row_bytes, alignment % 4 == 0, __funnelshift_r(x[k], next[k], 8 * skew));
        }
      }
    }
  }
  __device__ __forceinline__ void StoreZeros(uint8_t* row, int lane) const {
    ZeroRow(row_bytes, row, alignment % 4 == 0, lane);
  }
};

}  // namespace ibp
