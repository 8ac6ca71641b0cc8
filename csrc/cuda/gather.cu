// The hot path: ids -> slots -> payloads -> rows, in one kernel, for hits in GPU memory and misses in pinned host
// memory alike. A warp looks up a batch of ids, one per lane; then it decodes row after row, while the payload of
// the next row is on its way into the other of its two windows in shared memory.
#include <cuda_pipeline_primitives.h>

#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/row_units.cuh"

namespace ibp {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
constexpr int kBlocksPerMultiprocessor = 6;
constexpr int kMaxIdsPerBatch = 8;
constexpr int32_t kLoadBytes = 16;
constexpr int32_t kMaxWindowBytes = 2048;
constexpr int32_t kWindowSlackBytes = 16;  // ReadBits may look at one word past the window

__host__ __device__ constexpr int32_t RoundUp(int32_t x, int32_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

enum class RowKind : int32_t { kNothing, kPayload, kRaw };

// Where one id's row lies. Found by one lane, used by the whole warp.
struct RowRef {
  const uint8_t* source = nullptr;
  RowKind kind = RowKind::kNothing;
  bool hit = false;

  __device__ RowRef Broadcast(int lane) const {
    RowRef ref;
    ref.source =
        reinterpret_cast<const uint8_t*>(__shfl_sync(kWholeWarp, reinterpret_cast<unsigned long long>(source), lane));
    ref.kind = static_cast<RowKind>(__shfl_sync(kWholeWarp, static_cast<int32_t>(kind), lane));
    ref.hit = __shfl_sync(kWholeWarp, static_cast<int32_t>(hit), lane);
    return ref;
  }
};

// The first warp to find something wrong says what; the host reads it at its next check.
__device__ void ReportError(const GatherRequest& request, GatherError error, int64_t id) {
  auto* claimed = reinterpret_cast<unsigned long long*>(request.counters_dev + kErrorClaimed);
  if (atomicCAS(claimed, 0ull, 1ull) != 0) return;
  volatile int64_t* report = request.error;
  report[1] = id;
  __threadfence_system();
  report[0] = error;
}

template <typename Id>
__device__ RowRef Lookup(const DeviceCodec& codec, const GatherRequest& request, Id id) {
  RowRef ref;
  if (id < 0 || static_cast<int64_t>(id) >= request.store.num_rows) {
    ReportError(request, kIdOutOfRange, id);
    return ref;
  }
  const int32_t cached = request.cache_slot_dev ? __ldg(request.cache_slot_dev + id) : -1;
  ref.hit = cached >= 0;
  const DeviceRows& rows = ref.hit ? request.cache : request.store;
  const int64_t row = ref.hit ? cached : static_cast<int64_t>(id);
  ref.source = rows.slots + row * request.slot_bytes;
  ref.kind = (__ldg(rows.bitmask + row / 32) >> (row % 32)) & 1 ? RowKind::kPayload : RowKind::kRaw;
  if (ref.kind == RowKind::kRaw && request.slot_bytes < codec.layout.row_bytes) {
    uint32_t index = 0;
    for (int byte = 0; byte < kOverflowIndexBytes; ++byte)
      index |= static_cast<uint32_t>(ref.source[byte]) << (8 * byte);
    if (index >= rows.num_overflow) {
      ReportError(request, kDamagedRow, id);
      ref.kind = RowKind::kNothing;
    } else {
      ref.source = rows.overflow + int64_t{index} * codec.layout.row_bytes;
    }
  }
  return ref;
}

// A stretch of one payload in shared memory: bytes [begin, end) counted from `base`, the 16-byte boundary at or
// before the slot. 16-byte loads may touch neighbouring slots or the slack, never anything outside the buffer.
struct Window {
  const uint8_t* base = nullptr;
  uint8_t* shared = nullptr;
  int32_t begin = 0, end = 0;

  // Starts copying bytes [end, until), until rounded up, into the window; returns how many bytes that are.
  __device__ int32_t Append(int32_t until, int lane) {
    const int32_t target = RoundUp(until, kLoadBytes);
    for (int32_t at = end + lane * kLoadBytes; at < target; at += kWarpSize * kLoadBytes) {
      __pipeline_memcpy_async(shared + (at - begin), base + at, kLoadBytes);
    }
    const int32_t copied = max(0, target - end);
    end = max(end, target);
    return copied;
  }
  __device__ void MoveTo(int32_t byte) { begin = end = byte / kLoadBytes * kLoadBytes; }

  // 32 bits from bit `bit` of base; only bits inside the window are meaningful.
  __device__ uint32_t ReadBits(int32_t bit) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(shared) + (bit / 32 - begin / 4);
    return __funnelshift_r(words[0], words[1], bit % 32);
  }
  // The byte with bit `bit`, from memory if the window has moved on.
  __device__ uint32_t ByteOf(int32_t bit) const {
    const int32_t byte = bit / 8;
    return byte >= begin && byte < end ? shared[byte - begin] : base[byte];
  }
};

// Bits of the unit that the payload holds although mask says invariant, by the participation bits.
__device__ __forceinline__ uint32_t Unpacked(const UnitChunks& chunks, const Window& window, int32_t first_bit,
                                             int32_t unit) {
  const int32_t bit = first_bit + chunks.FirstChunk(unit);
  return chunks.Fill(~(window.ByteOf(bit) >> (bit % 8)));
}

// Decodes one payload into `out`. `window` holds its first bytes. Returns bytes fetched on top of these, or -1 if
// the payload is longer than its slot.
__device__ int32_t DecodePayload(const DeviceCodec& codec, const uint8_t* slot, int32_t slot_bytes,
                                 int32_t window_bytes, Window& window, uint8_t* out, bool aligned, int lane) {
  const UnitChunks chunks(codec.layout.chunk_bits);
  const int32_t row_bytes = codec.layout.row_bytes;
  const int32_t units = NumUnits(row_bytes);
  const int32_t first_bit = 8 * static_cast<int32_t>(slot - window.base);
  const int32_t limit_bit = first_bit + 8 * slot_bytes;
  int32_t payload_end_bit = -1;  // found when the first bytes do not suffice
  int32_t bit = first_bit + codec.layout.num_chunks;
  int32_t fetched = 0;
  if (bit > limit_bit) return -1;
  for (int32_t tile = 0; tile < units; tile += kWarpSize) {
    const int32_t unit = tile + lane;
    uint32_t keep = 0, valid = 0, unpacked = 0;
    if (unit < units) {
      const UnitTable table(codec, unit);
      keep = table.keep();
      valid = table.valid();
      unpacked = Unpacked(chunks, window, first_bit, unit) & valid;
    }
    const uint32_t kept = keep | unpacked;
    const int32_t size = __popc(kept);
    const int32_t end = WarpInclusiveSum(size, lane);
    const int32_t tile_bits = __shfl_sync(kWholeWarp, end, kWarpSize - 1);
    if (bit + tile_bits > limit_bit) return -1;
    if (bit + tile_bits > 8 * window.end) {
      if (payload_end_bit < 0) {
        int32_t rest = 0;
        for (int32_t u = tile + lane; u < units; u += kWarpSize) {
          const UnitTable table(codec, u);
          rest += __popc(table.keep() | (Unpacked(chunks, window, first_bit, u) & table.valid()));
        }
        payload_end_bit = min(bit + WarpSum(rest), limit_bit);
      }
      __syncwarp();
      const int32_t tile_end = (bit + tile_bits + 7) / 8;
      if (RoundUp(tile_end, kLoadBytes) - window.begin > window_bytes) window.MoveTo(bit / 8);
      fetched += window.Append(min((payload_end_bit + 7) / 8, window.begin + window_bytes), lane);
      __pipeline_commit();
      __pipeline_wait_prior(0);
      __syncwarp();
    }
    if (unit < units) {
      const uint32_t bits = window.ReadBits(bit + end - size) & LowMask<uint32_t>(size);
      const UnitTable table(codec, unit);
      uint32_t x = bits;
      if (chunks.fields > 1) {  // put each field's bits at the field's low end
        x = 0;
        int taken = 0;
        for (int f = 0; f < chunks.fields; ++f) {
          const uint32_t field = LowMask<uint32_t>(chunks.field_bits) << (f * chunks.field_bits);
          const int count = __popc(kept & field);
          // A shift by 32 happens when nothing is left; it must give 0.
          const uint32_t left = taken < 32 ? bits >> taken : 0;
          x |= (left & LowMask<uint32_t>(count)) << (f * chunks.field_bits);
          taken += count;
        }
      }
      if (unpacked != valid) {
        uint32_t moves[kExpandSteps];
        table.Moves(moves);
        x = (SpreadFields(x, keep, moves) & ~unpacked) | (x & unpacked) | (table.bitval() & ~unpacked);
      }
      StoreUnit(out, unit, row_bytes, aligned, x);
    }
    bit += tile_bits;
  }
  return fetched;
}

// Copies a raw row from any byte address, reading whole aligned words.
__device__ void CopyRaw(const uint8_t* source, int32_t row_bytes, uint8_t* out, bool aligned, int lane) {
  const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(source) % 4);
  const uint32_t* words = reinterpret_cast<const uint32_t*>(source - skew);
  for (int32_t unit = lane; unit < NumUnits(row_bytes); unit += kWarpSize) {
    uint32_t x = words[unit];
    if (skew) x = __funnelshift_r(x, words[unit + 1], 8 * skew);
    StoreUnit(out, unit, row_bytes, aligned, x);
  }
}

__device__ void ZeroRow(int32_t row_bytes, uint8_t* out, bool aligned, int lane) {
  for (int32_t unit = lane; unit < NumUnits(row_bytes); unit += kWarpSize) StoreUnit(out, unit, row_bytes, aligned, 0);
}

template <typename Id>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(DeviceCodec codec, GatherRequest request, int32_t window_bytes, int32_t ids_per_batch, bool aligned) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % kWarpSize;
  const int warp_in_block = threadIdx.x / kWarpSize;
  const int32_t window_stride = window_bytes + kWindowSlackBytes;
  uint8_t* windows = reinterpret_cast<uint8_t*>(shared) + warp_in_block * 2 * window_stride;
  const int32_t row_bytes = codec.layout.row_bytes;
  const Id* ids = static_cast<const Id*>(request.ids_dev);
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + warp_in_block;
  int64_t hits = 0, misses = 0, store_bytes = 0;

  auto start_fetch = [&](const RowRef& ref, int parity) {
    Window window;
    window.shared = windows + parity * window_stride;
    if (ref.kind == RowKind::kPayload) {
      const int32_t skew = static_cast<int32_t>(reinterpret_cast<uintptr_t>(ref.source) % kLoadBytes);
      window.base = ref.source - skew;
      const int32_t fetched = window.Append(min(skew + request.lead_bytes, window_bytes), lane);
      if (!ref.hit) store_bytes += fetched;
    }
    __pipeline_commit();
    return window;
  };

  for (int64_t batch = warp * ids_per_batch; batch < request.num_ids; batch += num_warps * ids_per_batch) {
    const int count = static_cast<int>(min(static_cast<int64_t>(ids_per_batch), request.num_ids - batch));
    RowRef mine;
    Id id = 0;
    int64_t position = 0;
    if (lane < count) {
      id = ids[batch + lane];
      position = request.positions_dev ? request.positions_dev[batch + lane] : batch + lane;
      mine = Lookup(codec, request, id);
    }
    Window next = start_fetch(mine.Broadcast(0), 0);
    for (int i = 0; i < count; ++i) {
      const RowRef ref = mine.Broadcast(i);
      Window window = next;
      if (i + 1 < count) {
        next = start_fetch(mine.Broadcast(i + 1), (i + 1) % 2);
        __pipeline_wait_prior(1);
      } else {
        __pipeline_wait_prior(0);
      }
      __syncwarp();
      uint8_t* out = request.out_dev + __shfl_sync(kWholeWarp, position, i) * row_bytes;
      if (ref.kind == RowKind::kPayload) {
        const int32_t fetched =
            DecodePayload(codec, ref.source, request.slot_bytes, window_bytes, window, out, aligned, lane);
        if (fetched < 0) {
          __syncwarp();
          ZeroRow(row_bytes, out, aligned, lane);
          const Id damaged = __shfl_sync(kWholeWarp, id, i);
          if (lane == 0) ReportError(request, kDamagedRow, damaged);
        } else if (!ref.hit) {
          store_bytes += fetched;
        }
      } else if (ref.kind == RowKind::kRaw) {
        CopyRaw(ref.source, row_bytes, out, aligned, lane);
        if (!ref.hit) store_bytes += row_bytes + (request.slot_bytes < row_bytes ? kOverflowIndexBytes : 0);
      } else {
        ZeroRow(row_bytes, out, aligned, lane);
      }
      hits += ref.kind != RowKind::kNothing && ref.hit;
      misses += ref.kind != RowKind::kNothing && !ref.hit;
      __syncwarp();  // this window is filled again two rows on
    }
  }
  if (lane == 0) {
    auto add = [&](GatherCounter counter, int64_t value) {
      if (value) {
        atomicAdd(reinterpret_cast<unsigned long long*>(request.counters_dev + counter),
                  static_cast<unsigned long long>(value));
      }
    };
    add(kHits, hits);
    add(kMisses, misses);
    add(kStoreBytes, store_bytes);
  }
}

}  // namespace

void LaunchGather(const DeviceCodec& codec, const GatherRequest& request, cudaStream_t stream) {
  if (request.num_ids == 0) return;
  const int32_t window_bytes = std::min(RoundUp(request.slot_bytes, kLoadBytes) + kLoadBytes, kMaxWindowBytes);
  const size_t shared_bytes = size_t{2} * kWarpsPerBlock * (window_bytes + kWindowSlackBytes);
  const int most_blocks = request.max_blocks > 0 ? request.max_blocks : kBlocksPerMultiprocessor * NumMultiprocessors();
  // Lookups of a batch overlap, but a small gather rather has every warp busy.
  const int64_t per_warp = request.num_ids / (int64_t{most_blocks} * kWarpsPerBlock);
  const int32_t ids_per_batch = static_cast<int32_t>(std::clamp<int64_t>(per_warp, 1, kMaxIdsPerBatch));
  const int64_t ids_per_block = int64_t{kWarpsPerBlock} * ids_per_batch;
  const int grid =
      static_cast<int>(std::min<int64_t>(most_blocks, (request.num_ids + ids_per_block - 1) / ids_per_block));
  const bool aligned = RowsAreAligned(request.out_dev, codec.layout.row_bytes);
  if (request.ids_are_int64) {
    GatherKernel<int64_t>
        <<<grid, kThreads, shared_bytes, stream>>>(codec, request, window_bytes, ids_per_batch, aligned);
  } else {
    GatherKernel<int32_t>
        <<<grid, kThreads, shared_bytes, stream>>>(codec, request, window_bytes, ids_per_batch, aligned);
  }
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
