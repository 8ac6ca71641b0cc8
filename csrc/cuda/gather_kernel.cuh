// The hot path: ids -> slots -> payloads -> rows, in one kernel, for hits in GPU memory and misses in pinned host
// memory alike. A warp looks up a batch of ids, one per lane; then it decodes row after row from a window in shared
// memory, while the payload of the next row is on its way into registers. How a payload is decoded is up to a Decoder:
//   Codec         the device form of the codec, with `layout.row_bytes`
//   kLoads        16-byte loads of each lane in the first fetch of a payload
//   kHeadBytes    shared memory on top of the window
//   Decode(codec, request, window_bytes, source, first, out, lane)
//                 called by the whole warp; `first` has the first bytes. Returns bytes fetched on top, or -1 for a
//                 damaged payload.
#pragma once

#include <algorithm>

#include "cuda/gather_launch.h"
#include "cuda/places.cuh"

namespace ibp {

constexpr int kThreads = kGatherThreads;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
// Ordinary loads of 16 bytes a lane, not asynchronous copies to shared memory: from host memory those take half as long
// again when slots are not 32-byte aligned (3.7 ms against 2.5 for 200,000 ordered slots of 460 bytes on an H200).
constexpr int32_t kLoadBytes = 16;
constexpr int32_t kWindowSlackBytes = 16;  // reads of whole words may go past the window

__host__ __device__ constexpr int32_t RoundUp(int32_t x, int32_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

enum class RowKind : int32_t { kNothing, kPayload, kRaw };

// Where one id's row lies. Found by one lane, used by the whole warp.
struct RowRef {
  const uint8_t* source = nullptr;
  RowKind kind = RowKind::kNothing;
  bool hit = false;
  int32_t payload_limit = 0;  // of a payload: a longer one is damaged

  __device__ RowRef Broadcast(int lane) const {
    RowRef ref;
    ref.source =
        reinterpret_cast<const uint8_t*>(__shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(source), lane));
    static_assert(kMaxRowBytes < 1 << 28, "payload_limit fits above kind and hit");
    const int32_t packed = __shfl_sync(kWholeWarp, 8 * payload_limit + 2 * static_cast<int32_t>(kind) + hit, lane);
    ref.kind = static_cast<RowKind>(packed / 2 % 4);
    ref.hit = packed % 2;
    ref.payload_limit = packed / 8;
    return ref;
  }
};

// The first warp to find something wrong says what, of the id at which position; the host reads it at its next check.
__device__ inline void ReportError(const GatherRequest& request, GatherError error, int64_t position) {
  auto* claimed = reinterpret_cast<unsigned long long*>(request.counters_dev + kErrorClaimed);
  if (atomicCAS(claimed, 0ull, 1ull) != 0) return;
  volatile int64_t* report = request.error;
  report[1] = ReadId(request, position);
  __threadfence_system();
  report[0] = error;
}

// Whether a row lies at this place, which is that of the id at this position; notes that it is read. If not, reports
// it.
__device__ inline bool TouchPlace(const GatherRequest& request, int64_t position, int64_t place) {
  if (place >= request.num_places) {
    ReportError(request, IsBadId(request, ReadId(request, position)) ? kIdOutOfRange : kDamagedRow, position);
    return false;
  }
  if (request.touched_dev) {
    uint32_t* word = request.touched_dev + place / 32;
    const uint32_t bit = 1u << (place % 32);
    if (!(*word & bit)) atomicOr(word, bit);
  }
  return true;
}

__device__ inline const RowSegment& SegmentOf(const GatherRequest& request, int64_t place) {
  int at = 0;
#pragma unroll
  for (int next = 1; next < kMaxSegments; ++next) {
    at += next < request.num_segments && place >= request.segments[next].first_place;
  }
  return request.segments[at];
}

// A payload fits its slot and is shorter than the row; whatever asks for more is damaged.
__device__ inline int32_t PayloadLimit(const GatherRequest& request, int32_t row_bytes) {
  return min(request.slot_bytes, row_bytes - 1);
}

// Row number `row` of the segment, of the id at this position; its slot is read from `slot`.
__device__ inline RowRef RowInSlot(const GatherRequest& request, const RowSegment& segment, int64_t row,
                                   const uint8_t* slot, int32_t row_bytes, int64_t position) {
  const DeviceRows& rows = segment.rows;
  RowRef ref;
  ref.hit = segment.hits;
  ref.source = slot;
  ref.payload_limit = PayloadLimit(request, row_bytes);
  ref.kind = (__ldg(rows.bitmask + row / 32) >> (row % 32)) & 1 ? RowKind::kPayload : RowKind::kRaw;
  if (ref.kind == RowKind::kRaw && request.slot_bytes < row_bytes) {
    uint32_t index = 0;
    for (int byte = 0; byte < kOverflowIndexBytes; ++byte)
      index |= static_cast<uint32_t>(ref.source[byte]) << (8 * byte);
    if (index >= rows.num_overflow) {
      ReportError(request, kDamagedRow, position);
      ref.kind = RowKind::kNothing;
    } else {
      ref.source = rows.overflow + int64_t{index} * row_bytes;
    }
  }
  return ref;
}

// The same of packed rows.
__device__ inline RowRef PackedRow(const GatherRequest& request, const RowSegment& segment, int64_t row,
                                   int32_t row_bytes, int64_t position) {
  const DeviceRows& rows = segment.rows;
  const PackedPlace place =
      PlaceOfRow(reinterpret_cast<const PackedRecord*>(rows.bitmask), row, request.packing, row_bytes);
  RowRef ref;
  ref.hit = segment.hits;
  ref.source = rows.slots + place.start;
  ref.kind = place.is_payload ? RowKind::kPayload : RowKind::kRaw;
  ref.payload_limit = static_cast<int32_t>(min(place.bytes, int64_t{row_bytes} - 1));
  if (!IsPlace(place, request.packing, request.slot_bytes, rows.packed_bytes)) {
    ReportError(request, kDamagedRow, position);
    ref.kind = RowKind::kNothing;
  }
  return ref;
}

// Of the id at this position, which lies at this place.
__device__ inline RowRef Lookup(const GatherRequest& request, int32_t row_bytes, int64_t position, int64_t place) {
  if (!TouchPlace(request, position, place)) return {};
  const RowSegment& segment = SegmentOf(request, place);
  const int64_t row = place - segment.origin;
  if (request.packing.is_packed()) return PackedRow(request, segment, row, row_bytes, position);
  return RowInSlot(request, segment, row, segment.rows.slots + row * request.slot_bytes, row_bytes, position);
}

// Bytes on their way from memory into the registers of a warp.
template <int kLoads>
struct Fetch {
  static constexpr int32_t kStride = kWarpSize * kLoadBytes;  // bytes of one load by all lanes
  static constexpr int32_t kMaxBytes = kLoads * kStride;

  uint4 loaded[kLoads];

  // Starts loading bytes [begin, end) from base; at most kMaxBytes, all multiples of kLoadBytes.
  __device__ void Start(const uint8_t* base, int32_t begin, int32_t end, int lane) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t at = begin + i * kStride + lane * kLoadBytes;
      if (at < end) loaded[i] = *reinterpret_cast<const uint4*>(base + at);
    }
  }
  // Puts them where all lanes can read them, after a __syncwarp.
  __device__ void Finish(uint8_t* shared, int32_t bytes, int lane) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t at = i * kStride + lane * kLoadBytes;
      if (at < bytes) *reinterpret_cast<uint4*>(shared + at) = loaded[i];
    }
  }
};

// What reading a raw row reads.
__device__ inline int32_t RawRowBytes(const GatherRequest& request, int32_t row_bytes) {
  const bool overflows = request.slot_bytes < row_bytes && !request.packing.is_packed();
  return row_bytes + (overflows ? kOverflowIndexBytes : 0);
}

// The first bytes of one payload in shared memory. Bytes count from `base`, the last kLoadBytes boundary before the
// slot; loads may touch neighbouring slots or the slack, never anything outside the buffer.
struct FirstBytes {
  const uint8_t* base = nullptr;
  uint8_t* shared = nullptr;
  int32_t end = 0;
  int32_t payload_limit = 0;  // as of RowRef
};

// Copies a raw row from any byte address, reading whole aligned words.
__device__ inline void CopyRaw(const uint8_t* source, int32_t row_bytes, uint8_t* out, bool aligned, int lane) {
  const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(source) % 4);
  const uint32_t* words = reinterpret_cast<const uint32_t*>(source - skew);
  for (int32_t unit = lane; unit < NumUnits(row_bytes); unit += kWarpSize) {
    uint32_t x = words[unit];
    if (skew) x = __funnelshift_r(x, words[unit + 1], 8 * skew);
    StoreUnit(out, unit, row_bytes, aligned, x);
  }
}

__device__ inline void ZeroRow(int32_t row_bytes, uint8_t* out, bool aligned, int lane) {
  for (int32_t unit = lane; unit < NumUnits(row_bytes); unit += kWarpSize) StoreUnit(out, unit, row_bytes, aligned, 0);
}

// Called by whole blocks, once, with what each thread has counted. One thread adds for all: thousands of additions to
// one address take longer than a small gather.
__device__ inline void AddCounters(const GatherRequest& request, int32_t hits, int32_t misses, int64_t store_bytes) {
  __shared__ unsigned long long sums[kNumGatherCounters];
  if (threadIdx.x < kNumGatherCounters) sums[threadIdx.x] = 0;
  __syncthreads();
  auto add = [&](GatherCounter counter, int64_t value) {
    if (!__any_sync(kWholeWarp, value != 0)) return;
#pragma unroll
    for (int distance = kWarpSize / 2; distance; distance /= 2) value += __shfl_xor_sync(kWholeWarp, value, distance);
    if (threadIdx.x % kWarpSize == 0) atomicAdd(&sums[counter], static_cast<unsigned long long>(value));
  };
  add(kHits, hits);
  add(kMisses, misses);
  add(kStoreBytes, store_bytes);
  __syncthreads();
  if (threadIdx.x < kErrorClaimed && sums[threadIdx.x]) {
    atomicAdd(reinterpret_cast<unsigned long long*>(request.counters_dev + threadIdx.x), sums[threadIdx.x]);
  }
}

// What a warp works on: ids_per_batch ids from `first`, `first + stride`, ... on, all below `end`.
struct WarpShare {
  int64_t first, stride, end;
  int32_t ids_per_batch;
};

// Called by whole warps.
__device__ inline WarpShare MakeWarpShare(const GatherRequest& request, const GatherGrid& grid) {
  const int warp_in_block = threadIdx.x / kWarpSize;
  auto share = [&](int64_t begin, int64_t end, int block, int blocks, int32_t ids_per_batch) {
    const int64_t warp = static_cast<int64_t>(block) * kWarpsPerBlock + warp_in_block;
    const int64_t warps = static_cast<int64_t>(blocks) * kWarpsPerBlock;
    return WarpShare{begin + warp * ids_per_batch, warps * ids_per_batch, end, ids_per_batch};
  };
  const int block = static_cast<int>(blockIdx.x);
  if (grid.miss_blocks == 0) return share(0, request.num_ids, block, grid.blocks, grid.ids_per_batch);
  const int64_t hits = CountBelow(request.places_dev, request.num_ids, request.num_hit_places);
  return block < grid.miss_blocks
             ? share(hits, request.num_ids, block, grid.miss_blocks, grid.misses_per_batch)
             : share(0, hits, block - grid.miss_blocks, grid.blocks - grid.miss_blocks, grid.ids_per_batch);
}

template <typename Decoder>
__global__ void __launch_bounds__(kThreads)
    GatherRowsKernel(const __grid_constant__ typename Decoder::Codec codec,
                     const __grid_constant__ GatherRequest request, int32_t window_bytes, GatherGrid grid) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % kWarpSize, warp_in_block = threadIdx.x / kWarpSize;
  const int32_t window_stride = Decoder::kHeadBytes + window_bytes + kWindowSlackBytes;
  uint8_t* shared_window = reinterpret_cast<uint8_t*>(shared) + warp_in_block * window_stride;
  const int32_t row_bytes = codec.layout.row_bytes;
  const bool aligned = RowsAreAligned(request.out_dev, row_bytes);
  const WarpShare share = MakeWarpShare(request, grid);
  int32_t hits = 0, misses = 0;
  int64_t store_bytes = 0;

  Fetch<Decoder::kLoads> fetch;  // the first bytes of the next payload
  auto start_fetch = [&](const RowRef& ref) {
    FirstBytes first;
    first.shared = shared_window;
    first.payload_limit = ref.payload_limit;
    if (ref.kind == RowKind::kPayload) {
      const int32_t skew = static_cast<int32_t>(reinterpret_cast<uintptr_t>(ref.source) % kLoadBytes);
      first.base = ref.source - skew;
      first.end = RoundUp(min(skew + min(request.lead_bytes, ref.payload_limit), window_bytes), kLoadBytes);
      fetch.Start(first.base, 0, first.end, lane);
      if (!ref.hit) store_bytes += first.end;
    }
    return first;
  };

  for (int64_t batch = share.first; batch < share.end; batch += share.stride) {
    const int count = static_cast<int>(min(static_cast<int64_t>(share.ids_per_batch), share.end - batch));
    RowRef mine;  // of id `lane` of the batch; none where there is no such id
    int64_t position = 0;
    if (lane < count) {
      position = request.order_dev ? request.order_dev[batch + lane] : batch + lane;
      const int64_t place = request.places_dev ? request.places_dev[batch + lane] : PlaceOf(request, position);
      mine = Lookup(request, row_bytes, position, place);
    }
    RowRef next = mine.Broadcast(0);
    FirstBytes next_bytes = start_fetch(next);
    for (int i = 0; i < count; ++i) {
      const RowRef ref = next;
      const FirstBytes first = next_bytes;
      fetch.Finish(shared_window, first.end, lane);
      __syncwarp();
      if (i + 1 < count) {
        next = mine.Broadcast(i + 1);
        next_bytes = start_fetch(next);
      }
      uint8_t* out = request.out_dev + __shfl_sync(kWholeWarp, position, i) * row_bytes;
      int32_t fetched = 0;
      if (ref.kind == RowKind::kPayload) {
        fetched = Decoder::Decode(codec, request, window_bytes, ref.source, first, out, lane);
        if (fetched < 0 && lane == i) ReportError(request, kDamagedRow, position);  // the lane that looked it up
      } else if (ref.kind == RowKind::kRaw) {
        CopyRaw(ref.source, row_bytes, out, aligned, lane);
        fetched = RawRowBytes(request, row_bytes);
      }
      if (fetched < 0 || ref.kind == RowKind::kNothing) ZeroRow(row_bytes, out, aligned, lane);
      if (!ref.hit && fetched > 0) store_bytes += fetched;
      hits += ref.kind != RowKind::kNothing && ref.hit;
      misses += ref.kind != RowKind::kNothing && !ref.hit;
      __syncwarp();  // the window is filled again
    }
  }
  const bool counts = lane == 0;  // all lanes have the same numbers
  AddCounters(request, counts ? hits : 0, counts ? misses : 0, counts ? store_bytes : 0);
}

template <typename Decoder>
GatherKernel MakeGatherKernel(const GatherRequest& request) {
  const int32_t window_bytes =
      std::min(RoundUp(request.slot_bytes, kLoadBytes) + kLoadBytes, Fetch<Decoder::kLoads>::kMaxBytes);
  const size_t shared_bytes = size_t{kWarpsPerBlock} * (Decoder::kHeadBytes + window_bytes + kWindowSlackBytes);
  const auto* function = reinterpret_cast<const void*>(&GatherRowsKernel<Decoder>);
  return GatherKernel(function, request.lead_bytes, window_bytes, shared_bytes, 1);
}

}  // namespace ibp
