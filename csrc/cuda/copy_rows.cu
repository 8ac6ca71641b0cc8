// Copying uncompressed rows: scattering those that an update has made; and gathering, which the compressed gather is
// measured against.
#include <algorithm>

#include "cuda/copy_rows.h"
#include "cuda/cuda_check.h"
#include "cuda/row_units.cuh"

namespace ibp {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
constexpr int kRowsInFlight = 4;

// A warp copies kRowsInFlight rows at a time, with all their loads issued before the first store.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    CopyRowsKernel(const uint8_t* __restrict__ rows, int32_t row_bytes, const int64_t* __restrict__ ids,
                   const int64_t* __restrict__ positions, int64_t num_ids, uint8_t* __restrict__ out) {
  const int lane = threadIdx.x % kWarpSize;
  const int32_t units = row_bytes / static_cast<int32_t>(sizeof(Unit));
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpSize;
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t first = warp * kRowsInFlight; first < num_ids; first += num_warps * kRowsInFlight) {
    const Unit* source[kRowsInFlight];
    Unit* target[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      const int64_t i = min(first + r, num_ids - 1);
      source[r] = reinterpret_cast<const Unit*>(rows + ids[i] * row_bytes);
      target[r] = reinterpret_cast<Unit*>(out + (positions ? positions[i] : i) * row_bytes);
    }
    for (int32_t unit = lane; unit < units; unit += kWarpSize) {
      Unit loaded[kRowsInFlight];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) loaded[r] = source[r][unit];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) target[r][unit] = loaded[r];
    }
  }
}

// A warp a row, a byte a lane: updates are small.
__global__ void __launch_bounds__(kThreads)
    ScatterRowsKernel(const uint8_t* __restrict__ rows, int32_t row_bytes, const int64_t* __restrict__ at,
                      int64_t num_rows, uint8_t* __restrict__ out, int64_t out_rows) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpSize; i < num_rows;
       i += num_warps) {
    const int64_t row = at[i];
    if (row < 0 || row >= out_rows) continue;
    for (int32_t byte = lane; byte < row_bytes; byte += kWarpSize) {
      out[row * row_bytes + byte] = rows[i * row_bytes + byte];
    }
  }
}

__global__ void NothingKernel() {}

}  // namespace

void LaunchNothing(cudaStream_t stream) {
  NothingKernel<<<1, kThreads, 0, stream>>>();
  IBP_CUDA_CHECK(cudaGetLastError());
}

void LaunchScatterRows(const uint8_t* rows_dev, int32_t row_bytes, const int64_t* at_dev, int64_t num_rows,
                       uint8_t* out_dev, int64_t out_rows, cudaStream_t stream) {
  if (num_rows == 0) return;
  const int64_t useful = (num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const int grid = static_cast<int>(std::min(useful, int64_t{8} * NumMultiprocessors()));
  ScatterRowsKernel<<<grid, kThreads, 0, stream>>>(rows_dev, row_bytes, at_dev, num_rows, out_dev, out_rows);
  IBP_CUDA_CHECK(cudaGetLastError());
}

void LaunchCopyRows(const uint8_t* rows, int32_t row_bytes, const int64_t* ids_dev, const int64_t* positions_dev,
                    int64_t num_ids, uint8_t* out_dev, int32_t max_blocks, cudaStream_t stream) {
  if (num_ids == 0) return;
  const int64_t useful = (num_ids + kWarpsPerBlock * kRowsInFlight - 1) / (kWarpsPerBlock * kRowsInFlight);
  const int64_t most = max_blocks > 0 ? max_blocks : int64_t{8} * NumMultiprocessors();
  const int grid = static_cast<int>(std::min(useful, most));
  const uintptr_t alignment = reinterpret_cast<uintptr_t>(rows) | reinterpret_cast<uintptr_t>(out_dev) | row_bytes;
  auto launch = [&](auto unit) {
    CopyRowsKernel<decltype(unit)>
        <<<grid, kThreads, 0, stream>>>(rows, row_bytes, ids_dev, positions_dev, num_ids, out_dev);
  };
  if (alignment % 16 == 0) {
    launch(uint4{});
  } else if (alignment % 4 == 0) {
    launch(uint32_t{});
  } else {
    launch(uint8_t{});
  }
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
