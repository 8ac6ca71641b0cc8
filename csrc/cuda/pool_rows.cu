#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/pool_bags.cuh"
#include "cuda/pool_rows.h"

namespace ibp {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;
constexpr int kRowsInFlight = 8;

// A warp has 32 columns of a bag. blockIdx.y: which.
template <PoolType kType>
__global__ void __launch_bounds__(kThreads)
    PoolRowsKernel(const __grid_constant__ PoolRequest pool, const uint8_t* rows, int32_t width, PoolMode mode,
                   int64_t padding_id, int64_t out_column_bytes) {
  GatherRequest ids;
  ids.ids_dev = pool.ids_dev;
  ids.ids_are_int64 = pool.ids_are_int64;
  const int32_t column = static_cast<int32_t>(blockIdx.y) * kWarpSize + threadIdx.x % kWarpSize;
  if (column >= width) return;
  const int64_t stride = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t bag = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; bag < pool.num_bags;
       bag += stride) {
    const int64_t begin = BagStart(pool, bag), bag_ids = BagStart(pool, bag + 1) - begin;
    float whole = 0.0f;
    int32_t count = 0;
    int64_t at = begin;
    for (int64_t p = 0; p < NumPieces(bag_ids); ++p) {
      const int64_t end = begin + PieceEnd(bag_ids, p);
      float piece = 0.0f;
      int32_t of_piece = 0;
      while (at < end) {
        float values[kRowsInFlight];
        const int in_flight = static_cast<int>(min(end - at, int64_t{kRowsInFlight}));
#pragma unroll
        for (int r = 0; r < kRowsInFlight; ++r) {
          if (r >= in_flight) break;
          const int64_t i = (at + r) * width + column;
          values[r] = FloatOfBits<kType>(kType == PoolType::kFloat32 ? reinterpret_cast<const uint32_t*>(rows)[i]
                                                                     : reinterpret_cast<const uint16_t*>(rows)[i]);
        }
#pragma unroll
        for (int r = 0; r < kRowsInFlight; ++r) {
          if (r >= in_flight) break;
          if (padding_id >= 0 && ReadId(ids, at + r) == padding_id) continue;
          const float value = pool.weights_dev ? __fmul_rn(pool.weights_dev[at + r], values[r]) : values[r];
          piece = PoolNext(mode, of_piece == 0, piece, value);
          ++of_piece;
        }
        at += in_flight;
      }
      if (of_piece == 0) continue;
      // A bag of one piece is that piece: 0 + x is x, unless x is -0, which no sum is.
      whole = PoolNext(mode, count == 0, whole, piece);
      count += of_piece;
    }
    StorePooled<kType>(pool.out_dev + bag * pool.out_stride_bytes + out_column_bytes, column,
                       PoolResult(mode, whole, count));
  }
}

}  // namespace

void LaunchPoolRows(const PoolRequest& pool, const uint8_t* rows_dev, int32_t width, PoolType type, PoolMode mode,
                    int64_t padding_id, int64_t out_column_bytes, cudaStream_t stream) {
  if (pool.num_bags == 0) return;
  const int64_t blocks = std::min<int64_t>(CeilDiv(pool.num_bags, kWarpsPerBlock), int64_t{32} * NumMultiprocessors());
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(CeilDiv(width, kWarpSize)));
  const auto kernel = type == PoolType::kFloat32   ? &PoolRowsKernel<PoolType::kFloat32>
                      : type == PoolType::kFloat16 ? &PoolRowsKernel<PoolType::kFloat16>
                                                   : &PoolRowsKernel<PoolType::kBfloat16>;
  kernel<<<grid, kThreads, 0, stream>>>(pool, rows_dev, width, mode, padding_id, out_column_bytes);
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
