// Brings rows that a pooling will miss to GPU memory: each once, however often it is asked for, and in the order of
// where they lie. Random reads of mapped host memory over more than a gigabyte are bound by address translation; in
// order they are not.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/pool_request.h"

namespace ibp {

constexpr int64_t kMaxMisses = int64_t{1} << 32;  // of all tables together: their numbers are 32-bit words

// What lies in scratch memory, in bytes from its start, which is a multiple of 256. The bags may be worked on in parts,
// one after the other: then the rows of one are fetched while those of the one before are pooled. Each part has its own
// bits and ranks; a row is of the first part that asks for it.
struct StageLayout {
  int64_t bits = 0, ends = 0, ranks = 0, list = 0, cub = 0, slots = 0;
  int64_t words = 0, cub_bytes = 0, capacity = 0, stride = 0;
  int32_t parts = 1;
  int64_t bytes = 0;

  // num_misses: numbers of misses that there are; largest_slot: of all tables. For at most `capacity` rows of all
  // parts. On the current device; throws CudaError, and ArgumentError for more than kMaxStageParts.
  StageLayout(int64_t num_misses, int64_t largest_slot, int64_t capacity, int32_t parts);
};

// The misses among the ids of a pooling, staged. Call Clear, then for each part in order List, then Fetch.
class Staging {
 public:
  // features_dev: in device memory, ordered by first_miss. scratch_dev: layout.bytes.
  Staging(const PoolFeature* features_dev, int32_t num_features, const StageLayout& layout, uint8_t* scratch_dev)
      : features_dev_(features_dev), num_features_(num_features), layout_(layout), scratch_dev_(scratch_dev) {}

  void Clear(cudaStream_t stream) const;
  // Lists the misses of these bags, which are the part's.
  void List(const PoolRequest& pool, int32_t part, cudaStream_t stream) const;
  // Copies their slots. max_blocks: of the kernel, which reads host memory.
  void Fetch(int32_t part, int max_blocks, cudaStream_t stream) const;
  // Where the part's rows are.
  StagedRows Rows(int32_t part) const;

 private:
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(scratch_dev_ + offset);
  }
  uint32_t* Bits(int32_t part) const { return At<uint32_t>(layout_.bits) + part * layout_.words; }
  uint32_t* Ranks(int32_t part) const { return At<uint32_t>(layout_.ranks) + part * layout_.words; }

  const PoolFeature* const features_dev_;
  const int32_t num_features_;
  const StageLayout& layout_;
  uint8_t* const scratch_dev_;
};

}  // namespace ibp
