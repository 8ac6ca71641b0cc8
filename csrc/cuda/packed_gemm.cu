// Few vectors, by the tensor cores. A block has 16 rows of the weights, and its warps share the columns. A warp's step
// is kStepValues columns: each lane loads 16 codes of two rows, which are its parts of four matrix operations. Sums do
// not depend on which column is where in such an operation, as long as weights and x agree: lane q of a row takes 16
// neighbouring columns, 4 for each operation.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/packed_codes.cuh"
#include "cuda/packed_linear.h"

namespace ibp {
namespace {

constexpr int kThreads = 256, kWarpSize = 32, kWarps = kThreads / kWarpSize;
constexpr int kRows = 16, kTileColumns = 8;  // of an operation's result
constexpr int kStepValues = 64, kLaneValues = 16, kLaneWords = kLaneValues / 4;
constexpr int kSteps = 2;  // at once
constexpr float kNan = __builtin_nanf("");

struct Gemm {
  PackedMatrix w;
  const uint16_t* x_dev;
  int32_t x_stride, batch;
  bool aligned;  // as PackedMatrix says
  float* out_dev;
};

// kBfloat16: pairs of half floats become pairs of bfloat16, which hold every 8-bit value.
template <bool kBfloat16>
__device__ __forceinline__ uint32_t OperandOf(uint32_t pair) {
  if constexpr (kBfloat16) {
    const __nv_bfloat162 rounded = __float22bfloat162_rn(FloatsOf(pair));
    return *reinterpret_cast<const uint32_t*>(&rounded);
  } else {
    return pair;
  }
}

// sums += a * b: 16 x 16 times 16 x 8.
template <bool kBfloat16>
__device__ __forceinline__ void MultiplyAdd(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  if constexpr (kBfloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

// kTiles: of kTileColumns vectors.
template <NarrowFloat kFormat, bool kBfloat16, int kTiles>
__global__ void __launch_bounds__(kThreads) PackedGemmKernel(const __grid_constant__ Gemm gemm) {
  using Codes = ByteCodes<kFormat>;
  __shared__ float sums_of_warps[kWarps][kTiles][kRows * kTileColumns];
  __shared__ uint32_t nan_of_row[kRows];
  const PackedMatrix& w = gemm.w;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int in_tile = lane / 4, q = lane % 4;  // of weights a row and the row 8 below it; of x a vector
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  if (threadIdx.x < kRows) nan_of_row[threadIdx.x] = 0;
  __syncthreads();

  const uint32_t* rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] = w.words_dev + min(first_row + in_tile + 8 * half, w.num_rows - 1) * w.row_words;
  }
  float sums[kTiles][4] = {};
  uint32_t nan_bits[2] = {};
  for (int32_t column = warp * kSteps * kStepValues; column < gemm.x_stride; column += kWarps * kSteps * kStepValues) {
    uint4 loaded[kSteps][2];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int32_t at = (column + step * kStepValues) / 4 + q * kLaneWords;
#pragma unroll
      for (int half = 0; half < 2; ++half) loaded[step][half] = LoadRowWords(rows[half], at, w.row_words, gemm.aligned);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t words[2][kLaneWords];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4& x = loaded[step][half];
        words[half][0] = x.x, words[half][1] = x.y, words[half][2] = x.z, words[half][3] = x.w;
#pragma unroll
        for (int word = 0; word < kLaneWords; ++word) nan_bits[half] |= Codes::NanBits(words[half][word]);
      }
      const int32_t lane_column = column + step * kStepValues + q * kLaneValues;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int vector = tile * kTileColumns + in_tile;
        uint4 x[2] = {};
        if (vector < gemm.batch && lane_column < gemm.x_stride) {
          const auto* source =
              reinterpret_cast<const uint4*>(gemm.x_dev + int64_t{vector} * gemm.x_stride + lane_column);
          x[0] = __ldg(source), x[1] = __ldg(source + 1);
        }
        const uint32_t pairs[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
#pragma unroll
        for (int word = 0; word < kLaneWords; ++word) {
          const uint32_t a[4] = {OperandOf<kBfloat16>(Codes::Pair(words[0][word], 0)),
                                 OperandOf<kBfloat16>(Codes::Pair(words[1][word], 0)),
                                 OperandOf<kBfloat16>(Codes::Pair(words[0][word], 1)),
                                 OperandOf<kBfloat16>(Codes::Pair(words[1][word], 1))};
          MultiplyAdd<kBfloat16>(sums[tile], a, pairs[2 * word], pairs[2 * word + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (HasNan(nan_bits[half])) atomicOr(&nan_of_row[in_tile + 8 * half], 1u);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = in_tile + i / 2 * 8, vector = q * 2 + i % 2;
      sums_of_warps[warp][tile][vector * kRows + row] = sums[tile][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTiles * kRows * kTileColumns; i += kThreads) {
    const int tile = i / (kRows * kTileColumns), row = i % kRows;
    const int vector = tile * kTileColumns + i / kRows % kTileColumns;
    if (vector >= gemm.batch || first_row + row >= w.num_rows) continue;
    float sum = 0.0f;
    for (int of_warp = 0; of_warp < kWarps; ++of_warp) {
      sum += sums_of_warps[of_warp][tile][i % (kRows * kTileColumns)];
    }
    sum *= Codes::kScale;
    if (w.row_scale_dev) sum *= w.row_scale_dev[first_row + row];
    gemm.out_dev[vector * w.num_rows + first_row + row] = nan_of_row[row] ? kNan : sum;
  }
}

template <NarrowFloat kFormat, bool kBfloat16>
void Launch(Gemm gemm, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(gemm.w.num_rows, kRows));
  if (gemm.batch <= kTileColumns) {
    PackedGemmKernel<kFormat, kBfloat16, 1><<<blocks, kThreads, 0, stream>>>(gemm);
  } else {
    PackedGemmKernel<kFormat, kBfloat16, kMaxPackedBatch / kTileColumns><<<blocks, kThreads, 0, stream>>>(gemm);
  }
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void LaunchPackedGemm(const PackedMatrix& w, const void* x_dev, ValueType x_type, int32_t x_stride, int32_t batch,
                      float* out_dev, cudaStream_t stream) {
  if (w.num_rows == 0 || batch == 0) return;
  int device = 0, major = 0;
  IBP_CUDA_CHECK(cudaGetDevice(&device));
  IBP_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  if (major < 8) Throw<ArgumentError>("GPU: want architecture 80 or later, got ", major, "x");
  const Gemm gemm{w, static_cast<const uint16_t*>(x_dev), x_stride, batch, w.IsAligned(), out_dev};
  const bool bfloat16 = x_type == ValueType::kBfloat16;
  if (w.format == NarrowFloat::kE5m2) {
    bfloat16 ? Launch<NarrowFloat::kE5m2, true>(gemm, stream) : Launch<NarrowFloat::kE5m2, false>(gemm, stream);
  } else {
    bfloat16 ? Launch<NarrowFloat::kE4m3, true>(gemm, stream) : Launch<NarrowFloat::kE4m3, false>(gemm, stream);
  }
}

}  // namespace ibp
