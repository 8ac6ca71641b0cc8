// Shared memory of the fast gather of codec "dict": what lies where, and how far reads go.
//
//   block:  [per-column dictionaries] [warp 0] [warp 1] ... [kReadAheadBytes]
//   warp:   [list: a RowEntry for each of the 32 lanes] [windows: kTileRows of window_stride bytes each]
//
// Bounds. A payload is bytes from outside: what its codes say of its length need not be true, and lanes without a
// value, and rows that a tile does not have, decode whatever lies in their window. Results that make no sense are
// written over or not stored. Only reads have to stay in shared memory, whatever they find:
//   - Every read of a window starts at most at skew + payload_limit + kMostBeyondBytes. Offsets that payloads
//     determine are cut to payload_limit before use; what is added after that, counts within one unit, is at most
//     kStepValues bytes; codes and low bits of lanes without a value are at most kMostSteps behind the row's.
//   - It takes at most kMostReadBytes from there.
//   - skew + payload_limit is at most the window: choose.cuh sees to that.
// So no read ends further behind its window than kMostBeyondBytes + kMostReadBytes; the next windows, or at the end of
// the block kReadAheadBytes, are there.
#pragma once

#include "cuda/dict_lanes/shape.cuh"

namespace ibp {

// A row of a batch. Its payload starts `skew` bytes after `base`, a kBaseAlign boundary; [0, end) from there is
// fetched. end is 0 for what is no payload. skew is a multiple of 4, as slots are.
struct alignas(16) RowEntry {
  const uint8_t* base;
  uint32_t position;  // in the output
  uint16_t end;
  uint8_t skew;
  uint8_t lane;  // that looked it up; kLongFlag is added when the payload turns out to be longer than what is fetched
};

constexpr uint8_t kLongFlag = 0x80;

constexpr int32_t kMostReadBytes = 16;  // AssembleValues and AssemblePresent: four words
constexpr int32_t kReadAheadBytes = 1024;

template <typename Lanes>
struct DictShared {
  static constexpr int32_t kListBytes = kWarpSize * static_cast<int32_t>(sizeof(RowEntry));
  static constexpr int32_t kWindowStride = Lanes::kFetchBytes + kWindowSlackBytes;  // but for long rows
  // Steps that are decoded beyond the row's last value, and the low bits of these.
  static constexpr int kMostSteps = Lanes::kManySteps ? 1 : Lanes::kSteps;
  static constexpr int32_t kMostLowBytes = kMostSteps * Lanes::kLanes * Lanes::kLaneLowBytes;
  static constexpr int32_t kMostBeyondBytes = std::max(Lanes::kStepValues, kMostLowBytes);
  static_assert(kMostBeyondBytes + kMostReadBytes <= kReadAheadBytes);
  int32_t dictionary_bytes, warp_bytes;

  __host__ __device__ DictShared(const DictLayout& layout, int32_t window_bytes) {
    const int32_t steps = (layout.num_values + Lanes::kStepValues - 1) / Lanes::kStepValues;
    dictionary_bytes = Lanes::kPerColumn ? steps * Lanes::kStepValues * 8 : 0;
    const int32_t stride = Lanes::kLongRows ? window_bytes + kWindowSlackBytes : kWindowStride;
    warp_bytes = kListBytes + Lanes::kTileRows * stride;
  }
  __host__ __device__ size_t block_bytes() const {
    return size_t(dictionary_bytes) + size_t(kWarpsPerBlock) * warp_bytes + kReadAheadBytes;
  }
};

// From global memory, which the compiler cannot know of an address that it reads from shared memory.
__device__ __forceinline__ uint4 LoadGlobal(const uint8_t* address) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(address));
  return x;
}

// The compiler does not compute it anew wherever it is used, for which it would take many instructions.
__device__ __forceinline__ uint32_t KeepInRegister(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ __forceinline__ uint8_t* KeepInRegister(uint8_t* shared) {
  const uint32_t address = KeepInRegister(static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
  return static_cast<uint8_t*>(__cvta_shared_to_generic(address));
}

// Per-column dictionaries as the lanes read them: of each pair of values of a step, 16 bytes lane by lane. Of the
// second of two steps there may be none; LookUpSymbols then reads what follows them, the list and windows of the warps,
// for values that the row does not have.
template <typename Lanes>
__device__ inline void LoadDictionaries(const DeviceDictCodec& codec, uint64_t* shared, int32_t entries) {
  for (int32_t i = threadIdx.x; i < entries; i += kThreads) {
    const int32_t pair = i / 2 % (Lanes::kStepValues / 2), step = i / Lanes::kStepValues;
    const int32_t lane = pair % Lanes::kLanes, value = pair / Lanes::kLanes * 2 + i % 2;
    const int32_t column = step * Lanes::kStepValues + lane * Lanes::kValues + value;
    shared[i] = column < codec.layout.num_values ? codec.packed_dev[column] : 0;
  }
  __syncthreads();
}

}  // namespace ibp
