// Counting sort of ids by the top bits of their places. Random reads of mapped host memory over more than a gigabyte
// are bound by address translation; ordered by 12 bits they are as fast as in full order, at a fraction of a radix
// sort's time.
#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/row_units.cuh"

namespace ibp {
namespace {

constexpr int kThreads = 256;
constexpr int kScanThreads = 1024;
constexpr int kBucketBits = 12;
constexpr int kBuckets = 1 << kBucketBits;
static_assert(kBuckets == kOrderScratch && kBuckets % kScanThreads == 0, "one counter a bucket, evenly for the scan");

__device__ int Bucket(const GatherRequest& request, int shift, int64_t i) {
  const int64_t id = ReadId(request, i);
  if (id < 0 || id >= request.store.num_rows) return 0;  // the gather reports it
  const int64_t place = request.place_dev ? __ldg(request.place_dev + id) : id;
  return static_cast<int>(place >> shift);
}

__global__ void __launch_bounds__(kThreads) CountKernel(GatherRequest request, int shift, int32_t* counts) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < request.num_ids; i += stride) {
    atomicAdd(counts + Bucket(request, shift, i), 1);
  }
}

// Counts to where each bucket starts, in one block.
__global__ void __launch_bounds__(kScanThreads) StartsKernel(int32_t* counts) {
  constexpr int kEach = kBuckets / kScanThreads;
  __shared__ int32_t warp_sums[kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  int32_t* mine = counts + threadIdx.x * kEach;
  int32_t count[kEach], all = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) all += count[k] = mine[k];
  int32_t before = WarpInclusiveSum(all, lane);
  if (lane == kWarpSize - 1) warp_sums[warp] = before;
  __syncthreads();
  if (warp == 0) {
    const int32_t sum = warp_sums[lane];
    warp_sums[lane] = WarpInclusiveSum(sum, lane) - sum;
  }
  __syncthreads();
  before += warp_sums[warp] - all;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    mine[k] = before;
    before += count[k];
  }
}

__global__ void __launch_bounds__(kThreads)
    ScatterKernel(GatherRequest request, int shift, int32_t* starts, int32_t* order) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < request.num_ids; i += stride) {
    order[atomicAdd(starts + Bucket(request, shift, i), 1)] = static_cast<int32_t>(i);
  }
}

}  // namespace

void LaunchOrder(const GatherRequest& request, int32_t* scratch_dev, int32_t* order_dev, cudaStream_t stream) {
  if (request.num_ids == 0) return;
  int shift = 0;
  while ((request.store.num_rows - 1 + request.store_offset) >> shift >= kBuckets) ++shift;
  IBP_CUDA_CHECK(cudaMemsetAsync(scratch_dev, 0, kBuckets * sizeof(int32_t), stream));
  const int64_t useful = (request.num_ids + kThreads - 1) / kThreads;
  const int grid = static_cast<int>(std::min<int64_t>(useful, int64_t{8} * NumMultiprocessors()));
  CountKernel<<<grid, kThreads, 0, stream>>>(request, shift, scratch_dev);
  StartsKernel<<<1, kScanThreads, 0, stream>>>(scratch_dev);
  ScatterKernel<<<grid, kThreads, 0, stream>>>(request, shift, scratch_dev, order_dev);
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
