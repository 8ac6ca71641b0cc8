// In five steps, none of which waits for the host:
//   MarkKernel    sets a bit for each miss that is asked for
//   an exclusive sum over the words' bits, from which a row's number follows
//   ListKernel    lists the misses in the order of their numbers
//   FetchKernel   copies their slots, with few blocks, which keeps the addresses in flight close together
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_scan.cuh>

#include "core/format.h"
#include "cuda/cuda_check.h"
#include "cuda/gather_launch.h"
#include "cuda/pool_bags.cuh"
#include "cuda/stage_rows.h"

namespace ibp {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
constexpr int kUnitBytes = 16;  // of a load
constexpr int64_t kAlignment = 256;

struct CountBits {
  __host__ __device__ uint32_t operator()(uint32_t word) const {
#if defined(__CUDA_ARCH__)
    return static_cast<uint32_t>(__popc(word));
#else
    return static_cast<uint32_t>(__builtin_popcount(word));
#endif
  }
};

cudaError_t SumBits(void* scratch, size_t& bytes, const uint32_t* bits, uint32_t* ranks, int64_t words,
                    cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(scratch, bytes, thrust::make_transform_iterator(bits, CountBits{}), ranks, words,
                                       stream);
}

// blockIdx.y: the feature.
__global__ void __launch_bounds__(kThreads)
    MarkKernel(const PoolFeature* features, const __grid_constant__ PoolRequest pool, uint32_t* bits) {
  const PoolFeature& feature = features[blockIdx.y];
  GatherRequest rows;
  rows.ids_dev = pool.ids_dev;
  rows.ids_are_int64 = pool.ids_are_int64;
  rows.num_rows = feature.rows.num_rows;
  rows.num_places = feature.rows.num_places;
  rows.place_dev = feature.rows.place_dev;
  const int64_t num_hit_places = feature.rows.num_hit_places, first_miss = feature.first_miss;
  const int64_t padding_id = feature.padding_id, end = EndId(pool, feature.key);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = FirstId(pool, feature.key) + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < end; i += stride) {
    if (ReadId(rows, i) == padding_id) continue;
    const int64_t place = PlaceOf(rows, i);
    if (place < num_hit_places || place >= rows.num_places) continue;
    const int64_t miss = place - num_hit_places + first_miss;
    const uint32_t bit = 1u << (miss % 32);
    // A stale word only costs an atomic operation.
    if (!(bits[miss / 32] & bit)) atomicOr(bits + miss / 32, bit);
  }
}

__global__ void __launch_bounds__(kThreads) ListKernel(const uint32_t* bits, const uint32_t* ranks, int64_t words,
                                                       uint32_t* list, int64_t capacity, int64_t* count) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t w = int64_t{blockIdx.x} * kThreads + threadIdx.x; w < words; w += stride) {
    int64_t number = ranks[w];
    for (uint32_t rest = bits[w]; rest; rest &= rest - 1, ++number) {
      if (number < capacity) list[number] = static_cast<uint32_t>(w * 32 + __ffs(rest) - 1);
    }
    if (w + 1 == words) *count = min(number, capacity);
  }
}

// A row to be copied: found by one lane, used by a group.
struct SlotToCopy {
  const uint8_t* from;  // a kUnitBytes boundary
  int32_t units;
};

// Bytes that a lane has copied. The rows are in order, so most are of the table of the one before.
struct CopiedBytes {
  int64_t* counters_dev = nullptr;
  int64_t bytes = 0;

  __device__ void Add(int64_t* counters, int32_t more) {
    if (counters != counters_dev) Flush();
    counters_dev = counters;
    bytes += more;
  }
  __device__ void Flush() {
    if (!bytes) return;
    atomicAdd(reinterpret_cast<unsigned long long*>(counters_dev + kStoreBytes),
              static_cast<unsigned long long>(bytes));
    bytes = 0;
  }
};

constexpr int kLanes = 16;  // that copy a slot
constexpr int kGroups = kWarpSize / kLanes;
constexpr int kLoads = 2;  // in flight, of each lane
constexpr int kRowsPerWarp = 4;

__global__ void __launch_bounds__(kThreads)
    FetchKernel(const PoolFeature* features, int32_t num_features, const uint32_t* list, const int64_t* count_dev,
                uint8_t* slots, int64_t slot_stride) {
  const int lane = threadIdx.x % kWarpSize, group = lane / kLanes, group_lane = lane % kLanes;
  const int64_t count = *count_dev;
  const int64_t warps = int64_t{gridDim.x} * kWarpsPerBlock;
  CopiedBytes copied;
  for (int64_t first = (int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize) * kRowsPerWarp; first < count;
       first += warps * kRowsPerWarp) {
    // The first lanes look a row up each.
    SlotToCopy mine = {nullptr, 0};
    if (lane < kRowsPerWarp && first + lane < count) {
      const int64_t miss = list[first + lane];
      int32_t of = 0;  // the last feature that starts at or before it; of those of one table any will do
      for (int32_t low = 0, high = num_features; low < high;) {
        const int32_t middle = (low + high) / 2;
        if (features[middle].first_miss <= miss) {
          of = middle;
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      const PoolFeature& feature = features[of];
      const GatherRequest& rows = feature.rows;
      const int64_t place = miss - feature.first_miss + rows.num_hit_places;
      int at = 0;
      for (int next = 1; next < rows.num_segments; ++next) at += place >= rows.segments[next].first_place;
      const RowSegment& segment = rows.segments[at];
      const uint8_t* slot = segment.rows.slots + (place - segment.origin) * rows.slot_bytes;
      const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(slot) % kUnitBytes);
      mine.from = slot - skew;
      mine.units = (skew + rows.slot_bytes + kUnitBytes - 1) / kUnitBytes;
      copied.Add(rows.counters_dev, mine.units * kUnitBytes);
    }
    uint4 loaded[kRowsPerWarp / kGroups][kLoads];
    SlotToCopy row[kRowsPerWarp / kGroups];
#pragma unroll
    for (int r = 0; r < kRowsPerWarp / kGroups; ++r) {
      const int from = r * kGroups + group;
      row[r].from = reinterpret_cast<const uint8_t*>(
          __shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(mine.from), from));
      row[r].units = __shfl_sync(kWholeWarp, mine.units, from);
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        const int32_t unit = load * kLanes + group_lane;
        if (unit < row[r].units) loaded[r][load] = *reinterpret_cast<const uint4*>(row[r].from + unit * kUnitBytes);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsPerWarp / kGroups; ++r) {
      uint8_t* const to = slots + (first + r * kGroups + group) * slot_stride;
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        const int32_t unit = load * kLanes + group_lane;
        if (unit < row[r].units) *reinterpret_cast<uint4*>(to + unit * kUnitBytes) = loaded[r][load];
      }
      for (int32_t unit = kLoads * kLanes + group_lane; unit < row[r].units; unit += kLanes) {  // of long slots
        *reinterpret_cast<uint4*>(to + unit * kUnitBytes) =
            *reinterpret_cast<const uint4*>(row[r].from + unit * kUnitBytes);
      }
    }
  }
  copied.Flush();
}

int Grid(int64_t work) {
  return static_cast<int>(std::min<int64_t>(CeilDiv(work, kThreads), int64_t{8} * NumMultiprocessors()));
}

}  // namespace

StageLayout::StageLayout(int64_t num_misses, int64_t largest_slot, int64_t capacity_)
    : words(CeilDiv(num_misses, 32)), capacity(capacity_) {
  stride = CeilDiv(largest_slot + kUnitBytes, kSectorBytes) * kSectorBytes;
  size_t scan_bytes = 0;
  IBP_CUDA_CHECK(SumBits(nullptr, scan_bytes, nullptr, nullptr, words, nullptr));
  cub_bytes = static_cast<int64_t>(scan_bytes);
  auto place = [&](int64_t length) {
    const int64_t at = bytes;
    bytes += CeilDiv(length, kAlignment) * kAlignment;
    return at;
  };
  bits = place(words * 4);
  ranks = place(words * 4);
  list = place(capacity * 4);
  count = place(8);
  cub = place(cub_bytes);
  slots = place(capacity * stride + kSlackBytes);
}

StagedRows LaunchStage(const PoolFeature* features_dev, int32_t num_features, const PoolRequest& pool,
                       const StageLayout& layout, uint8_t* scratch_dev, int max_blocks, cudaStream_t stream) {
  auto* bits = reinterpret_cast<uint32_t*>(scratch_dev + layout.bits);
  auto* ranks = reinterpret_cast<uint32_t*>(scratch_dev + layout.ranks);
  auto* list = reinterpret_cast<uint32_t*>(scratch_dev + layout.list);
  auto* count = reinterpret_cast<int64_t*>(scratch_dev + layout.count);
  IBP_CUDA_CHECK(cudaMemsetAsync(bits, 0, static_cast<size_t>(layout.words) * 4, stream));
  // The ids of a feature may be all or few of them.
  constexpr int kMostBlocks = 128;
  const int blocks = static_cast<int>(std::clamp<int64_t>(CeilDiv(pool.num_ids, 4 * kThreads), 1, kMostBlocks));
  MarkKernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(num_features)), kThreads, 0, stream>>>(
      features_dev, pool, bits);
  IBP_CUDA_CHECK(cudaGetLastError());
  size_t scan_bytes = static_cast<size_t>(layout.cub_bytes);
  IBP_CUDA_CHECK(SumBits(scratch_dev + layout.cub, scan_bytes, bits, ranks, layout.words, stream));
  ListKernel<<<Grid(layout.words), kThreads, 0, stream>>>(bits, ranks, layout.words, list, layout.capacity, count);
  IBP_CUDA_CHECK(cudaGetLastError());
  uint8_t* const slots = scratch_dev + layout.slots;
  FetchKernel<<<max_blocks, kThreads, 0, stream>>>(features_dev, num_features, list, count, slots, layout.stride);
  IBP_CUDA_CHECK(cudaGetLastError());
  return {bits, ranks, slots, layout.capacity, layout.stride};
}

}  // namespace ibp
