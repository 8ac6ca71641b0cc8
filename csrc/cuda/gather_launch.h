// Gather kernels as they are launched: chosen once, launched many times.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/gather_request.h"

namespace ibp {

constexpr int kGatherThreads = 256;             // of a block
constexpr size_t kMostSharedBytes = 216 << 10;  // of a block
constexpr size_t kStaticSharedBytes = 8 << 10;  // at most, beside these

// How much shared memory a block may ask for on the current device: kMostSharedBytes, or less where that is too much.
size_t MostSharedBytes();
constexpr int64_t kMaxIdsPerLaunch = int64_t{1} << 30;  // their numbers are 32-bit words in kernels

// How the ids are dealt to warps.
struct GatherGrid {
  int blocks = 0;
  int miss_blocks = 0;  // so many first blocks have the misses, in order, the others the hits; 0: all have both
  int32_t ids_per_batch = 0;
  int32_t misses_per_batch = 0;
};

// A kernel of the signature (device codec, GatherRequest, window bytes, GatherGrid), and what stays the same from
// launch to launch. To ask for the occupancy takes longer than a launch.
struct GatherKernel {
  const void* function = nullptr;
  int32_t lead_bytes = 0;    // of the request: what it fetches of a slot at first
  int32_t window_bytes = 0;  // in shared memory, of a payload
  size_t shared_bytes = 0;
  int ids_at_once = 1;  // that a warp works on at least
  int resident_blocks = 0;

  GatherKernel() = default;
  // On the current device. Throws CudaError, also where the GPU has no such kernel.
  GatherKernel(const void* function, int32_t lead_bytes, int32_t window_bytes, size_t shared_bytes, int ids_at_once);

  // device_codec: what the kernel takes first. At most kMaxIdsPerLaunch ids. Enqueues; returns at once if there are
  // none.
  void Launch(const void* device_codec, GatherRequest request, cudaStream_t stream) const;
};

}  // namespace ibp
