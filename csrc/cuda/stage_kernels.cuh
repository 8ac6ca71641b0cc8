// The kernels of stage_rows.cu.
#pragma once

#include "cuda/pool_bags.cuh"

namespace ibp {

constexpr int kStageThreads = 256;
constexpr int kStageWarpsPerBlock = kStageThreads / kWarpSize;
constexpr int kStageUnitBytes = 16;  // of a load

// blockIdx.y: the feature. bits: [parts, words].
__global__ void __launch_bounds__(kStageThreads)
    MarkKernel(const PoolFeature* features, const __grid_constant__ PoolRequest pool, uint32_t* bits, int64_t words,
               int32_t part) {
  const PoolFeature& feature = features[blockIdx.y];
  GatherRequest rows;
  rows.ids_dev = pool.ids_dev;
  rows.ids_are_int64 = pool.ids_are_int64;
  rows.num_rows = feature.rows.num_rows;
  rows.num_places = feature.rows.num_places;
  rows.place_dev = feature.rows.place_dev;
  const int64_t num_hit_places = feature.rows.num_hit_places, first_miss = feature.first_miss;
  if (num_hit_places == rows.num_places) return;
  const int64_t padding_id = feature.padding_id, end = EndId(pool, feature.key);
  const int64_t stride = int64_t{gridDim.x} * kStageThreads;
  for (int64_t i = FirstId(pool, feature.key) + int64_t{blockIdx.x} * kStageThreads + threadIdx.x; i < end;
       i += stride) {
    if (ReadId(rows, i) == padding_id) continue;
    const int64_t place = PlaceOf(rows, i);
    if (place < num_hit_places || place >= rows.num_places) continue;
    const int64_t miss = place - num_hit_places + first_miss;
    const uint32_t bit = 1u << (miss % 32);
    uint32_t* word = bits + miss / 32;
    bool known = false;
    for (int32_t before = 0; before < part; ++before, word += words) known |= (*word & bit) != 0;
    // A stale word only costs an atomic operation.
    if (!known && !(*word & bit)) atomicOr(word, bit);
  }
}

// A slot to copy: where its first unit starts, a multiple of kStageUnitBytes, and how many units it takes. GPUs'
// addresses have 48 bits or fewer.
constexpr int kAddressBits = 48;

// The last feature whose misses start at this one or before; of those of one table any will do.
__device__ inline int32_t FeatureOfMiss(const PoolFeature* features, int32_t num_features, int64_t miss) {
  int32_t of = 0;
  for (int32_t low = 0, high = num_features; low < high;) {
    const int32_t middle = (low + high) / 2;
    if (features[middle].first_miss <= miss) {
      of = middle;
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return of;
}

// How many of the bits before this word are set.
__device__ __forceinline__ int64_t RankOf(const uint32_t* bits, const uint32_t* ranks, int64_t words, int64_t word) {
  if (word < words) return ranks[word];
  return words ? int64_t{ranks[words - 1]} + __popc(bits[words - 1]) : 0;
}

// ends: [2], how many rows are staged before this part, and with it, which is written. Counts the bytes of the slots.
__global__ void __launch_bounds__(kStageThreads)
    ListKernel(const PoolFeature* features, int32_t num_features, const uint32_t* bits, const uint32_t* ranks,
               int64_t words, uint64_t* list, int64_t capacity, int64_t* ends) {
  const int64_t stride = int64_t{gridDim.x} * kStageThreads;
  const int64_t begin = ends[0], thread = int64_t{blockIdx.x} * kStageThreads + threadIdx.x;
  if (thread == 0) ends[1] = begin + RankOf(bits, ranks, words, words);
  for (int64_t f = thread; f < num_features; f += stride) {
    const int64_t first = features[f].first_miss, next = f + 1 < num_features ? features[f + 1].first_miss : words * 32;
    if (first == next) continue;
    const int64_t from = min(begin + RankOf(bits, ranks, words, first / 32), capacity);
    const int64_t to = min(begin + RankOf(bits, ranks, words, next / 32), capacity);
    const GatherRequest& rows = features[f].rows;
    atomicAdd(reinterpret_cast<unsigned long long*>(rows.counters_dev + kStoreBytes),
              static_cast<unsigned long long>((to - from) * rows.slot_bytes));
  }
  for (int64_t w = thread; w < words; w += stride) {
    const uint32_t word = bits[w];
    if (!word) continue;
    int64_t number = begin + ranks[w];
    const PoolFeature& feature = features[FeatureOfMiss(features, num_features, w * 32)];  // a word is of one table
    const GatherRequest& rows = feature.rows;
    for (uint32_t rest = word; rest && number < capacity; rest &= rest - 1, ++number) {
      const int64_t place = w * 32 + __ffs(rest) - 1 - feature.first_miss + rows.num_hit_places;
      int at = 0;
      for (int next = 1; next < rows.num_segments; ++next) at += place >= rows.segments[next].first_place;
      const RowSegment& segment = rows.segments[at];
      const auto slot = reinterpret_cast<uint64_t>(segment.rows.slots) +
                        (place - segment.origin) * static_cast<int64_t>(rows.slot_bytes);
      const uint64_t skew = slot % kStageUnitBytes;
      const uint64_t units = (skew + rows.slot_bytes + kStageUnitBytes - 1) / kStageUnitBytes;
      list[number] = (slot - skew) | (units << kAddressBits);
    }
  }
}

// So many lanes copy a slot, with so many loads of each in flight, of so many slots of each group.
constexpr int kFetchLanes = 16, kFetchLoads = 2, kFetchRows = 4;
constexpr int kFetchGroups = kWarpSize / kFetchLanes;
constexpr int kFetchRowsPerWarp = kFetchGroups * kFetchRows;

// ends: [2], numbers of the part's first row and of the one behind its last.
__global__ void __launch_bounds__(kStageThreads)
    FetchKernel(const uint64_t* list, const int64_t* ends, uint8_t* slots, int64_t slot_stride, int64_t capacity) {
  const int lane = threadIdx.x % kWarpSize, group = lane / kFetchLanes, group_lane = lane % kFetchLanes;
  const int64_t end = min(ends[1], capacity);
  const int64_t stride = int64_t{gridDim.x} * kStageWarpsPerBlock * kFetchRowsPerWarp;
  int64_t first =
      ends[0] + (int64_t{blockIdx.x} * kStageWarpsPerBlock + threadIdx.x / kWarpSize) * kFetchRowsPerWarp + group;
  // What the next round copies is known when this one is under way.
  uint64_t next[kFetchRows];
  const auto look_up = [&](int64_t from) {
#pragma unroll
    for (int r = 0; r < kFetchRows; ++r) {
      const int64_t number = from + r * kFetchGroups;
      next[r] = number < end ? list[number] : 0;
    }
  };
  look_up(first);
  for (; first < end; first += stride) {
    uint4 loaded[kFetchRows][kFetchLoads];
    const uint8_t* from[kFetchRows];
    int32_t units[kFetchRows];
#pragma unroll
    for (int r = 0; r < kFetchRows; ++r) {
      from[r] = reinterpret_cast<const uint8_t*>(next[r] & ((uint64_t{1} << kAddressBits) - 1));
      units[r] = static_cast<int32_t>(next[r] >> kAddressBits);
#pragma unroll
      for (int load = 0; load < kFetchLoads; ++load) {
        const int32_t unit = load * kFetchLanes + group_lane;
        if (unit < units[r]) loaded[r][load] = *reinterpret_cast<const uint4*>(from[r] + unit * kStageUnitBytes);
      }
    }
    look_up(first + stride);
#pragma unroll
    for (int r = 0; r < kFetchRows; ++r) {
      uint8_t* const to = slots + (first + r * kFetchGroups) * slot_stride;
#pragma unroll
      for (int load = 0; load < kFetchLoads; ++load) {
        const int32_t unit = load * kFetchLanes + group_lane;
        if (unit < units[r]) *reinterpret_cast<uint4*>(to + unit * kStageUnitBytes) = loaded[r][load];
      }
      for (int32_t unit = kFetchLoads * kFetchLanes + group_lane; unit < units[r]; unit += kFetchLanes) {  // long slots
        *reinterpret_cast<uint4*>(to + unit * kStageUnitBytes) =
            *reinterpret_cast<const uint4*>(from[r] + unit * kStageUnitBytes);
      }
    }
  }
}

}  // namespace ibp
