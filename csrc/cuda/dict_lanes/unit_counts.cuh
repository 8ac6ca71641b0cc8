// Prefix sums for all units of a tile at once.
#pragma once

#include "cuda/dict_lanes/shape.cuh"

namespace ibp {

// A count for each unit of a tile, several to a word. A count is at most kStepValues, all values of a unit in all
// lanes, and a field holds that: so fields never carry into each other, and one addition adds them all.
template <typename Lanes>
struct UnitCounts {
  static constexpr int kFieldBits = Lanes::kStepValues < 256 ? 8 : 16;
  static constexpr int kFieldsPerWord = 32 / kFieldBits, kWords = (Lanes::kUnits + kFieldsPerWord - 1) / kFieldsPerWord;
  static_assert(Lanes::kStepValues <= LowMask<uint32_t>(kFieldBits));

  uint32_t words[kWords] = {};

  __device__ __forceinline__ void Add(int unit, uint32_t count) {
    words[unit / kFieldsPerWord] += count << (unit % kFieldsPerWord * kFieldBits);
  }
  __device__ __forceinline__ int32_t Of(int unit) const {
    return (words[unit / kFieldsPerWord] >> (unit % kFieldsPerWord * kFieldBits)) & LowMask<uint32_t>(kFieldBits);
  }
  // Makes these the sums of the row's lanes before this one; returns those of all its lanes. Called by whole warps.
  __device__ __forceinline__ UnitCounts SumLanes(int group_lane) {
    UnitCounts totals;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t sum = words[w];
#pragma unroll
      for (int distance = 1; distance < Lanes::kLanes; distance *= 2) {
        const uint32_t other = __shfl_up_sync(kWholeWarp, sum, distance, Lanes::kLanes);
        if (group_lane >= distance) sum += other;
      }
      totals.words[w] = __shfl_sync(kWholeWarp, sum, Lanes::kLanes - 1, Lanes::kLanes);
      words[w] = sum - words[w];
    }
    return totals;
  }
};

}  // namespace ibp
