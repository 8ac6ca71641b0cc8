// What encoders share: one warp a row; the payload grows in a scratch line of global memory, which stays in the L2
// cache, so that rows of any length take the same path; then it is copied to the slot.
#pragma once

#include <algorithm>

#include "core/format.h"
#include "cuda/cuda_check.h"
#include "cuda/encode_target.h"
#include "cuda/row_units.cuh"

namespace ibp {
namespace {

constexpr int kEncodeThreads = 256;
constexpr int kEncodeWarps = kEncodeThreads / kWarpSize;
constexpr int kBlocksPerMultiprocessor = 4;

int EncodeBlocks() { return kBlocksPerMultiprocessor * NumMultiprocessors(); }

int64_t EncodeScratchBytes(int64_t words_per_warp) { return words_per_warp * 4 * EncodeBlocks() * kEncodeWarps; }

// Clears the bitmask; returns the grid to launch.
int StartEncode(const EncodeTarget& target, int64_t num_rows, cudaStream_t stream) {
  IBP_CUDA_CHECK(cudaMemsetAsync(target.bitmask, 0, static_cast<size_t>(BitmaskBytes(num_rows)), stream));
  const int64_t useful = (num_rows + kEncodeWarps - 1) / kEncodeWarps;
  return static_cast<int>(std::min<int64_t>(useful, EncodeBlocks()));
}

// Puts the lowest bits of `bits` at bit `offset` of words that are 0 there.
__device__ void OrBits(uint32_t* words, int64_t offset, uint32_t bits) {
  const int shift = static_cast<int>(offset % 32);
  if (bits << shift) atomicOr(words + offset / 32, bits << shift);
  if (shift && bits >> (32 - shift)) atomicOr(words + offset / 32 + 1, bits >> (32 - shift));
}

// The payload in `line` (written with atomics, so read from the L2 cache), or the raw row, to where it belongs.
__device__ void WriteSlot(const EncodeTarget& target, int64_t row, const uint8_t* source, int32_t row_bytes,
                          const uint32_t* line, int32_t payload_bytes, int lane) {
  const bool compressed = payload_bytes < row_bytes && payload_bytes <= target.slot_bytes;
  const bool has_index = target.slot_bytes < row_bytes;
  const bool spills = !compressed && has_index;
  uint8_t* slot = target.slots + row * target.slot_bytes;
  const int64_t place = has_index ? target.overflow_index[row] : -1;
  const bool changed = has_index && (spills ? place < 0 || place >= target.num_overflow : place >= 0);
  if (changed) {
    if (lane == 0) atomicMin(target.changed_row, static_cast<unsigned long long>(row));
    for (int32_t i = lane; i < target.slot_bytes; i += kWarpSize) slot[i] = 0;
    return;
  }
  const uint32_t index = spills ? static_cast<uint32_t>(place) : 0;
  for (int32_t i = lane; i < target.slot_bytes; i += kWarpSize) {
    uint32_t byte = 0;
    if (compressed) {
      if (i < payload_bytes) byte = __ldcg(line + i / 4) >> (8 * (i % 4));
    } else if (spills) {
      if (i < kOverflowIndexBytes) byte = index >> (8 * i);
    } else if (i < row_bytes) {
      byte = source[i];
    }
    slot[i] = static_cast<uint8_t>(byte);
  }
  if (spills) {
    uint8_t* raw = target.overflow + int64_t{index} * row_bytes;
    for (int32_t i = lane; i < row_bytes; i += kWarpSize) raw[i] = source[i];
  }
  if (compressed && lane == 0) atomicOr(target.bitmask + row / 32, uint32_t{1} << (row % 32));
}

}  // namespace
}  // namespace ibp
