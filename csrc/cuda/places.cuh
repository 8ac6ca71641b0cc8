// Where the row of an id lies: its place among the rows of the cache and the store (gather_request.h). Device code
// only.
#pragma once

#include "cuda/row_units.cuh"

namespace ibp {

__device__ __forceinline__ bool IsBadId(const GatherRequest& request, int64_t id) {
  return id < 0 || id >= request.num_rows;
}

// Of the id at this position; num_places for a bad id, and where the table of places is damaged.
__device__ __forceinline__ int64_t PlaceOf(const GatherRequest& request, int64_t position) {
  const int64_t id = ReadId(request, position);
  if (IsBadId(request, id)) return request.num_places;
  if (!request.place_dev) return id;
  const int64_t place = __ldg(request.place_dev + id);
  return place < 0 ? request.num_places : min(place, request.num_places);
}

// How many numbers below `count` are `below`: all those before the first that is not. Called by a whole warp.
template <typename Below>
__device__ inline int64_t CountBelow(int64_t count, const Below& below) {
  const int lane = threadIdx.x % kWarpSize;
  int64_t low = 0;  // the answer is in [low, low + count]
  while (count > 0) {
    const int64_t step = (count + kWarpSize - 1) / kWarpSize, at = low + (lane + 1) * step - 1;
    const int whole_steps = __popc(__ballot_sync(kWholeWarp, (lane + 1) * step <= count && below(at)));
    low += whole_steps * step;
    count = step == 1 ? 0 : min(count - whole_steps * step, step);
  }
  return low;
}

// How many of the sorted places are below `bound`. Called by a whole warp.
__device__ inline int64_t CountBelow(const uint32_t* places, int64_t count, int64_t bound) {
  return CountBelow(count, [&](int64_t i) { return places[i] < bound; });
}

}  // namespace ibp
