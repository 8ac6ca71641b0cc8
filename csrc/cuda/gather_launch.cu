#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/gather_launch.h"

namespace ibp {
namespace {

constexpr int kWarpsPerBlock = kGatherThreads / 32;
constexpr int kMaxIdsPerBatch = 32;
// With max_blocks, which is for host memory: neighbouring ids that all warps together work on. Ordered ids then keep
// the addresses in flight close together (bench_gather: 2.4 ms with 1024, 2.9 with 4096).
constexpr int kIdsInFlight = 1024;
constexpr int kHitsPerBatch = 8;
constexpr size_t kSharedBytesWithoutAsking = (48 << 10) - kStaticSharedBytes;

GatherGrid MakeGrid(const GatherKernel& kernel, const GatherRequest& request) {
  // Without a limit as many blocks as are resident at once: a second wave would run on a part of the GPU only.
  const int resident = kernel.resident_blocks;
  const int most_blocks = request.max_blocks > 0 ? std::min(request.max_blocks, resident) : resident;
  const int64_t most_warps = int64_t{most_blocks} * kWarpsPerBlock;
  const int64_t most_ids_per_batch =
      request.max_blocks > 0 ? std::clamp<int64_t>(kIdsInFlight / most_warps, 1, kMaxIdsPerBatch) : kMaxIdsPerBatch;
  GatherGrid grid;
  if (request.places_dev && request.num_hit_places > 0 && most_blocks < resident) {
    // How many ids are hits is known to the GPU alone; small batches spread any number of them evenly enough.
    grid.blocks = resident;
    grid.miss_blocks = most_blocks;
    grid.ids_per_batch = kHitsPerBatch;
    grid.misses_per_batch = static_cast<int32_t>(most_ids_per_batch);
    return grid;
  }
  // As large batches as can be, since the lookups of a batch overlap, but of a size that gives every warp equally many.
  const int64_t rounds = CeilDiv(request.num_ids, most_warps * most_ids_per_batch);
  const int64_t even = CeilDiv(request.num_ids, most_warps * rounds);
  const int64_t ids_per_batch = CeilDiv(even, kernel.ids_at_once) * kernel.ids_at_once;
  grid.ids_per_batch = static_cast<int32_t>(std::min<int64_t>(ids_per_batch, kMaxIdsPerBatch));
  const int64_t useful_blocks = CeilDiv(request.num_ids, int64_t{kWarpsPerBlock} * grid.ids_per_batch);
  grid.blocks = static_cast<int>(std::min<int64_t>(most_blocks, useful_blocks));
  return grid;
}

}  // namespace

size_t MostSharedBytes() {
  int device = 0, most = 0;
  IBP_CUDA_CHECK(cudaGetDevice(&device));
  IBP_CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return std::min(kMostSharedBytes, static_cast<size_t>(most) - kStaticSharedBytes);
}

GatherKernel::GatherKernel(const void* function_, int32_t lead_bytes_, int32_t window_bytes_, size_t shared_bytes_,
                           int ids_at_once_)
    : function(function_),
      lead_bytes(lead_bytes_),
      window_bytes(window_bytes_),
      shared_bytes(shared_bytes_),
      ids_at_once(ids_at_once_) {
  if (shared_bytes > kSharedBytesWithoutAsking) {
    const size_t most = MostSharedBytes();
    if (shared_bytes > most) {
      Throw<ArgumentError>("shared memory of a gather: want at most ", most, " bytes, got ", shared_bytes);
    }
    // Always the same number: it is the function's, and other plans launch it with more than this one needs.
    IBP_CUDA_CHECK(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)));
  }
  int per_multiprocessor = 0;
  IBP_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, function, kGatherThreads, shared_bytes));
  resident_blocks = NumMultiprocessors() * std::max(per_multiprocessor, 1);
}

void GatherKernel::Launch(const void* device_codec, GatherRequest request, cudaStream_t stream) const {
  if (request.num_ids == 0) return;
  request.lead_bytes = lead_bytes;
  GatherGrid grid = MakeGrid(*this, request);
  int32_t window = window_bytes;
  void* arguments[] = {const_cast<void*>(device_codec), &request, &window, &grid};
  IBP_CUDA_CHECK(cudaLaunchKernel(function, dim3(static_cast<unsigned>(grid.blocks)), dim3(kGatherThreads), arguments,
                                  shared_bytes, stream));
}

}  // namespace ibp
