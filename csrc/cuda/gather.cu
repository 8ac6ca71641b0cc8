// The hot path: ids -> slots -> payloads -> rows, in one kernel, for hits in GPU memory and misses in pinned host
// memory alike. A warp looks up a batch of ids, one per lane; then it decodes row after row from a window in shared
// memory, while the payload of the next row is on its way into registers.
#include <algorithm>
#include <type_traits>

#include "cuda/cuda_check.h"
#include "cuda/row_units.cuh"

namespace ibp {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
constexpr int kBlocksPerMultiprocessor = 6;
constexpr int kMaxIdsPerBatch = 16;
// With max_blocks, which is for host memory: neighbouring ids that all warps together work on. Ordered ids then keep
// the addresses in flight close together (bench_gather: 2.4 ms with 1024, 2.9 with 4096).
constexpr int kIdsInFlight = 1024;
constexpr int32_t kLoadBytes = 16;
// One warp-wide load of 16 bytes a lane. Ordinary loads, not asynchronous copies to shared memory: from host memory
// those take half as long again when slots are not 32-byte aligned (3.7 ms against 2.5 for 200,000 ordered slots of 460
// bytes on an H200).
constexpr int32_t kLoadStride = kWarpSize * kLoadBytes;
constexpr int kMaxLoads = 2;
constexpr int32_t kMaxWindowBytes = kMaxLoads * kLoadStride;
constexpr int32_t kHeadBytes = 256;        // participation bits that stay in shared memory when the window moves
constexpr int32_t kWindowSlackBytes = 16;  // ReadBits may look at one word past the window

__host__ __device__ constexpr int32_t RoundUp(int32_t x, int32_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

__host__ __device__ constexpr int32_t SharedBytesPerWarp(int32_t window_bytes) {
  return kHeadBytes + window_bytes + kWindowSlackBytes;
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

// Bytes on their way from memory into a warp's registers.
struct Fetch {
  uint4 loaded[kMaxLoads];

  // Starts loading bytes [begin, end) from base; at most kMaxWindowBytes, all multiples of kLoadBytes.
  __device__ void Start(const uint8_t* base, int32_t begin, int32_t end, int lane) {
#pragma unroll
    for (int i = 0; i < kMaxLoads; ++i) {
      const int32_t at = begin + i * kLoadStride + lane * kLoadBytes;
      if (at < end) loaded[i] = *reinterpret_cast<const uint4*>(base + at);
    }
  }
  // Puts them where all lanes can read them, after a __syncwarp.
  __device__ void Finish(uint8_t* shared, int32_t bytes, int lane) const {
#pragma unroll
    for (int i = 0; i < kMaxLoads; ++i) {
      const int32_t at = i * kLoadStride + lane * kLoadBytes;
      if (at < bytes) *reinterpret_cast<uint4*>(shared + at) = loaded[i];
    }
  }
};

// The part of one payload that is in shared memory. Bytes count from `base`, the last kLoadBytes boundary before the
// slot; loads may touch neighbouring slots or the slack, never anything outside the buffer. The first fetch brings
// [0, end); later ones move the window to [begin, end) but leave the head, with the participation bits, in place.
struct Window {
  const uint8_t* base = nullptr;
  uint8_t* head = nullptr;  // byte 0 in shared memory
  uint8_t* body = nullptr;  // byte `begin` in shared memory
  int32_t head_end = 0, begin = 0, end = 0;

  __device__ void MoveTo(int32_t begin_, int32_t until, int lane) {
    begin = begin_ / kLoadBytes * kLoadBytes;
    end = RoundUp(until, kLoadBytes);
    head_end = min(head_end, kHeadBytes);
    body = head + kHeadBytes;
    Fetch fetch;
    fetch.Start(base, begin, end, lane);
    __syncwarp();  // every lane is done with what the window held
    fetch.Finish(body, end - begin, lane);
    __syncwarp();
  }
  // 32 bits from bit `bit` of base; only bits inside the window are meaningful.
  __device__ uint32_t ReadBits(int32_t bit) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(body) + ((bit >> 5) - (begin >> 2));
    return __funnelshift_r(words[0], words[1], bit & 31);
  }
  // At least 16 bits from bit `bit` of the head, from memory where it is longer than kHeadBytes.
  __device__ uint32_t ReadHead(int32_t bit) const {
    if (bit + 16 <= 8 * head_end) {
      const uint32_t* words = reinterpret_cast<const uint32_t*>(head) + (bit >> 5);
      return __funnelshift_r(words[0], words[1], bit & 31);
    }
    const uint8_t* bytes = base + (bit >> 3);
    return (bytes[0] | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16) >> (bit & 7);
  }
};

// Which bits of a lane's kUnits units the payload holds.
template <int kUnits>
struct KeptBits {
  UnitVector<kUnits> keep = {};    // those that are never invariant
  uint32_t unpacked[kUnits] = {};  // those of chunks that do not participate
  int32_t size = 0;                // how many in all

  __device__ uint32_t kept(int k) const { return keep.at[k] | unpacked[k]; }

  __device__ static KeptBits Read(const DeviceCodec& codec, const UnitChunks& chunks, const Window& window,
                                  int32_t first_bit, int32_t unit) {
    KeptBits bits;
    const UnitTable table(codec, unit);
    bits.keep = table.GetVector<kUnits>(kKeepTable);
    const UnitVector<kUnits> valid = table.GetVector<kUnits>(kValidTable);
    const int32_t chunk = chunks.FirstChunk(unit);
    const uint32_t whole = ~window.ReadHead(first_bit + chunk);  // at most 4 units of 4 chunks
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      bits.unpacked[k] = chunks.Fill(whole >> (chunks.FirstChunk(unit + k) - chunk)) & valid.at[k];
      bits.size += __popc(bits.kept(k));
    }
    return bits;
  }
};

// One unit from its bits in the payload, which are at the low end of `bits`.
__device__ __forceinline__ uint32_t RestoreUnit(const UnitChunks& chunks, uint32_t bits, uint32_t keep,
                                                uint32_t unpacked, uint32_t bitval,
                                                const uint32_t moves[kExpandSteps]) {
  if (chunks.fields == 1) return unpacked ? bits : SpreadFields(bits, keep, moves) | bitval;
  uint32_t x = 0;  // each field's bits at the field's low end
  int taken = 0;
  for (int f = 0; f < chunks.fields; ++f) {
    const uint32_t field = LowMask<uint32_t>(chunks.field_bits) << (f * chunks.field_bits);
    const int count = __popc((keep | unpacked) & field);
    const uint32_t left = taken < 32 ? bits >> taken : 0;  // a shift by 32 would not give 0
    x |= (left & LowMask<uint32_t>(count)) << (f * chunks.field_bits);
    taken += count;
  }
  return (SpreadFields(x, keep, moves) & ~unpacked) | (x & unpacked) | (bitval & ~unpacked);
}

// Decodes one payload into `out`, kUnits units a lane at a time; `out` is aligned to them, or kUnits is 1. `window`
// holds the payload's first bytes. Returns bytes fetched on top of these, or -1 if the payload is longer than its slot.
template <int kUnits>
__device__ int32_t DecodePayload(const DeviceCodec& codec, const uint8_t* slot, int32_t slot_bytes,
                                 int32_t window_bytes, Window& window, uint8_t* out, bool aligned, int lane) {
  using Bits = KeptBits<kUnits>;
  const UnitChunks chunks(codec.layout.chunk_bits);
  const int32_t row_bytes = codec.layout.row_bytes;
  const int32_t units = NumUnits(row_bytes);
  const int32_t first_bit = 8 * static_cast<int32_t>(slot - window.base);
  const int32_t limit_bit = first_bit + 8 * slot_bytes;
  int32_t payload_end_bit = -1;  // found when the first bytes do not suffice
  int32_t bit = first_bit + codec.layout.num_chunks;
  int32_t fetched = 0;
  if (bit > limit_bit) return -1;
  for (int32_t tile = 0; tile < units; tile += kWarpSize * kUnits) {
    const int32_t unit = tile + lane * kUnits;
    Bits kept;
    if (unit < units) kept = Bits::Read(codec, chunks, window, first_bit, unit);
    const int32_t end = WarpInclusiveSum(kept.size, lane);
    const int32_t tile_bits = __shfl_sync(kWholeWarp, end, kWarpSize - 1);
    if (bit + tile_bits > limit_bit) return -1;
    if (bit + tile_bits > 8 * window.end) {
      if (payload_end_bit < 0) {
        int32_t rest = 0;
        for (int32_t u = tile + lane * kUnits; u < units; u += kWarpSize * kUnits) {
          rest += Bits::Read(codec, chunks, window, first_bit, u).size;
        }
        payload_end_bit = min(bit + WarpSum(rest), limit_bit);
      }
      window.MoveTo(bit >> 3, min((payload_end_bit + 7) / 8, (bit >> 3) / kLoadBytes * kLoadBytes + window_bytes),
                    lane);
      fetched += window.end - window.begin;
    }
    if (unit < units) {
      const UnitTable table(codec, unit);
      UnitVector<kUnits> x = table.GetVector<kUnits>(kBitvalTable);
      if (kept.size) {
        UnitVector<kUnits> steps[kExpandSteps];
#pragma unroll
        for (int s = 0; s < kExpandSteps; ++s) steps[s] = table.GetVector<kUnits>(kMoveTable + s);
        int32_t at = bit + end - kept.size;
#pragma unroll
        for (int k = 0; k < kUnits; ++k) {
          const int count = __popc(kept.kept(k));
          const uint32_t bits = window.ReadBits(at) & LowMask<uint32_t>(count);
          const uint32_t moves[kExpandSteps] = {steps[0].at[k], steps[1].at[k], steps[2].at[k], steps[3].at[k],
                                                steps[4].at[k]};
          x.at[k] = RestoreUnit(chunks, bits, kept.keep.at[k], kept.unpacked[k], x.at[k], moves);
          at += count;
        }
      }
      if (kUnits > 1) {
        *reinterpret_cast<UnitVector<kUnits>*>(out + 4 * unit) = x;
      } else {
        StoreUnit(out, unit, row_bytes, aligned, x.at[0]);
      }
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

template <typename Id, int kUnits>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(DeviceCodec codec, GatherRequest request, int32_t window_bytes, int32_t ids_per_batch, bool aligned) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % kWarpSize;
  const int warp_in_block = threadIdx.x / kWarpSize;
  const int32_t window_stride = SharedBytesPerWarp(window_bytes);
  uint8_t* shared_window = reinterpret_cast<uint8_t*>(shared) + warp_in_block * window_stride;
  const int32_t row_bytes = codec.layout.row_bytes;
  const Id* ids = static_cast<const Id*>(request.ids_dev);
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + warp_in_block;
  int64_t hits = 0, misses = 0, store_bytes = 0;

  Fetch fetch;  // the first bytes of the next payload
  auto start_fetch = [&](const RowRef& ref) {
    Window window;
    window.head = window.body = shared_window;
    if (ref.kind == RowKind::kPayload) {
      const int32_t skew = static_cast<int32_t>(reinterpret_cast<uintptr_t>(ref.source) % kLoadBytes);
      window.base = ref.source - skew;
      window.end = window.head_end = RoundUp(min(skew + request.lead_bytes, window_bytes), kLoadBytes);
      fetch.Start(window.base, 0, window.end, lane);
      if (!ref.hit) store_bytes += window.end;
    }
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
    Window next = start_fetch(mine.Broadcast(0));
    for (int i = 0; i < count; ++i) {
      const RowRef ref = mine.Broadcast(i);
      Window window = next;
      fetch.Finish(shared_window, window.end, lane);
      __syncwarp();
      if (i + 1 < count) next = start_fetch(mine.Broadcast(i + 1));
      uint8_t* out = request.out_dev + __shfl_sync(kWholeWarp, position, i) * row_bytes;
      if (ref.kind == RowKind::kPayload) {
        const int32_t fetched =
            DecodePayload<kUnits>(codec, ref.source, request.slot_bytes, window_bytes, window, out, aligned, lane);
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
      __syncwarp();  // the window is filled again
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
  const size_t shared_bytes = size_t{1} * kWarpsPerBlock * SharedBytesPerWarp(window_bytes);
  const int most_blocks = request.max_blocks > 0 ? request.max_blocks : kBlocksPerMultiprocessor * NumMultiprocessors();
  // Lookups of a batch overlap, but a small gather rather has every warp busy.
  const int64_t per_warp = request.num_ids / (int64_t{most_blocks} * kWarpsPerBlock);
  const int64_t most_ids_per_batch = request.max_blocks > 0
                                         ? std::clamp(kIdsInFlight / (most_blocks * kWarpsPerBlock), 1, kMaxIdsPerBatch)
                                         : kMaxIdsPerBatch;
  const int32_t ids_per_batch = static_cast<int32_t>(std::clamp<int64_t>(per_warp, 1, most_ids_per_batch));
  const int64_t ids_per_block = int64_t{kWarpsPerBlock} * ids_per_batch;
  const int64_t useful_blocks = (request.num_ids + ids_per_block - 1) / ids_per_block;
  const int grid = static_cast<int>(std::min<int64_t>(most_blocks, useful_blocks));
  const bool aligned = RowsAreAligned(request.out_dev, codec.layout.row_bytes);
  auto launch = [&](auto id, auto units) {
    GatherKernel<decltype(id), decltype(units)::value>
        <<<grid, kThreads, shared_bytes, stream>>>(codec, request, window_bytes, ids_per_batch, aligned);
  };
  auto launch_for_ids = [&](auto units) {
    request.ids_are_int64 ? launch(int64_t{}, units) : launch(int32_t{}, units);
  };
  // The more units a lane handles, the fewer prefix sums; rows have to start at a multiple of them.
  const uintptr_t alignment =
      reinterpret_cast<uintptr_t>(request.out_dev) | static_cast<uintptr_t>(codec.layout.row_bytes);
  if (alignment % 16 == 0) {
    launch_for_ids(std::integral_constant<int, 4>{});
  } else if (alignment % 8 == 0) {
    launch_for_ids(std::integral_constant<int, 2>{});
  } else {
    launch_for_ids(std::integral_constant<int, 1>{});
  }
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
