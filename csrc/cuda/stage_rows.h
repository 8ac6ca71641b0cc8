// Brings rows that a pooling will miss to GPU memory: each once, however often it is asked for, and in the order of
// where they lie. Random reads of mapped host memory over more than a gigabyte are bound by address translation; in
// order they are not.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/pool_request.h"

namespace ibp {

constexpr int64_t kMaxMisses = int64_t{1} << 32;  // of all tables together: their numbers are 32-bit words

// What lies in scratch memory, in bytes from its start, which is a multiple of 256.
struct StageLayout {
  int64_t bits = 0, ranks = 0, list = 0, count = 0, cub = 0, slots = 0;
  int64_t words = 0, cub_bytes = 0, capacity = 0, stride = 0;
  int64_t bytes = 0;

  // num_misses: numbers of misses that there are; largest_slot: of all tables. For at most `capacity` rows. On the
  // current device; throws CudaError.
  StageLayout(int64_t num_misses, int64_t largest_slot, int64_t capacity);
};

// Stages the misses of these features, which are in device memory, among the ids of `pool`. Returns what `pool.staged`
// is to be for kernels that are enqueued behind. max_blocks: of the kernel that reads host memory.
StagedRows LaunchStage(const PoolFeature* features_dev, int32_t num_features, const PoolRequest& pool,
                       const StageLayout& layout, uint8_t* scratch_dev, int max_blocks, cudaStream_t stream);

}  // namespace ibp
