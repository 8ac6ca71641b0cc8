// In five steps, none of which waits for the host:
//   MarkKernel    sets a bit for each miss that is asked for
//   an exclusive sum over the words' bits, from which a row's number follows
//   ListKernel    lists where the slots lie, in the order of their numbers
//   FetchKernel   copies them, with few blocks, which keeps the addresses in flight close together
// In numbers, the rows of a part follow those of the part before.
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cub/device/device_scan.cuh>

#include "core/check.h"
#include "core/format.h"
#include "cuda/cuda_check.h"
#include "cuda/gather_launch.h"
#include "cuda/stage_kernels.cuh"
#include "cuda/stage_rows.h"

namespace ibp {
namespace {

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

}  // namespace

StageLayout::StageLayout(int64_t num_misses, int64_t largest_slot, int64_t capacity_, int32_t parts_)
    : words(CeilDiv(num_misses, 32)), capacity(capacity_), parts(parts_) {
  if (parts < 1 || parts > kMaxStageParts) Throw<ArgumentError>("parts: want 1 to ", kMaxStageParts, ", got ", parts);
  stride = CeilDiv(largest_slot + kStageUnitBytes, kSectorBytes) * kSectorBytes;
  size_t scan_bytes = 0;
  IBP_CUDA_CHECK(SumBits(nullptr, scan_bytes, nullptr, nullptr, words, nullptr));
  cub_bytes = static_cast<int64_t>(scan_bytes);
  auto place = [&](int64_t length) {
    const int64_t at = bytes;
    bytes += CeilDiv(length, kAlignment) * kAlignment;
    return at;
  };
  bits = place(parts * words * int64_t{sizeof(uint32_t)});
  ends = place((parts + 1) * int64_t{sizeof(int64_t)});
  ranks = place(parts * words * int64_t{sizeof(uint32_t)});
  list = place(capacity * int64_t{sizeof(uint64_t)});
  cub = place(cub_bytes);
  slots = place(capacity * stride + kSlackBytes);
}

void Staging::Clear(cudaStream_t stream) const {
  const int64_t cleared = layout_.ends + (layout_.parts + 1) * int64_t{sizeof(int64_t)} - layout_.bits;
  IBP_CUDA_CHECK(cudaMemsetAsync(scratch_dev_ + layout_.bits, 0, static_cast<size_t>(cleared), stream));
}

void Staging::List(const PoolRequest& pool, int32_t part, cudaStream_t stream) const {
  // The ids of a feature may be all or few of them.
  constexpr int kMostBlocks = 128;
  const int blocks = static_cast<int>(std::clamp<int64_t>(CeilDiv(pool.num_ids, 4 * kStageThreads), 1, kMostBlocks));
  MarkKernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(num_features_)), kStageThreads, 0, stream>>>(
      features_dev_, pool, Bits(0), layout_.words, part);
  IBP_CUDA_CHECK(cudaGetLastError());
  size_t scan_bytes = static_cast<size_t>(layout_.cub_bytes);
  IBP_CUDA_CHECK(SumBits(scratch_dev_ + layout_.cub, scan_bytes, Bits(part), Ranks(part), layout_.words, stream));
  const int64_t most = int64_t{8} * NumMultiprocessors();
  const int grid = static_cast<int>(std::min(CeilDiv(layout_.words, kStageThreads), most));
  ListKernel<<<grid, kStageThreads, 0, stream>>>(features_dev_, num_features_, Bits(part), Ranks(part), layout_.words,
                                                 At<uint64_t>(layout_.list), layout_.capacity,
                                                 At<int64_t>(layout_.ends) + part);
  IBP_CUDA_CHECK(cudaGetLastError());
}

void Staging::Fetch(int32_t part, int max_blocks, cudaStream_t stream) const {
  FetchKernel<<<max_blocks, kStageThreads, 0, stream>>>(At<uint64_t>(layout_.list), At<int64_t>(layout_.ends) + part,
                                                        At<uint8_t>(layout_.slots), layout_.stride, layout_.capacity);
  IBP_CUDA_CHECK(cudaGetLastError());
}

StagedRows Staging::Rows(int32_t part) const {
  return {Bits(part),       Ranks(part),   At<int64_t>(layout_.ends) + part, At<uint8_t>(layout_.slots),
          layout_.capacity, layout_.stride};
}

}  // namespace ibp
