// One vector. A warp, or several that share the columns, has kRows rows at a time. x is in shared memory, laid out so
// that the 16 bytes that each lane reads lie side by side.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/gather_launch.h"
#include "cuda/packed_codes.cuh"
#include "cuda/packed_linear.h"

namespace ibp {
namespace {

constexpr int kThreads = 256, kWarpSize = 32, kWarps = kThreads / kWarpSize;
constexpr int kRows = 4;
constexpr int kLaneWords = 4;  // that a lane loads at once
constexpr int kChunkWords = kWarpSize * kLaneWords;
constexpr size_t kStaticBytes = sizeof(float) * 2 * kWarps * kRows;  // of shared memory, for sums of warps
constexpr size_t kSharedBytesWithoutAsking = (48 << 10) - kStaticBytes;
constexpr float kNan = __builtin_nanf("");

struct Gemv {
  PackedMatrix w;
  const void* x_dev;
  ValueType x_type;
  const float* column_scale_dev;
  const void* bias_dev;
  void* out_dev;
  ValueType out_type;
  bool aligned;           // as PackedMatrix says
  int32_t warps_per_row;  // 1, 2, 4 or 8
  int32_t chunks;         // of kChunkWords in a row
};

__device__ __forceinline__ float LoadFloat(const void* values, ValueType type, int64_t i) {
  if (type == ValueType::kFloat32) return static_cast<const float*>(values)[i];
  if (type == ValueType::kFloat16) return __half2float(static_cast<const __half*>(values)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(values)[i]);
}

__device__ __forceinline__ void StoreFloat(void* values, ValueType type, int64_t i, float x) {
  if (type == ValueType::kFloat32) {
    static_cast<float*>(values)[i] = x;
  } else if (type == ValueType::kFloat16) {
    static_cast<__half*>(values)[i] = __float2half_rn(x);
  } else {
    static_cast<__nv_bfloat16*>(values)[i] = __float2bfloat16_rn(x);
  }
}

// How a word of each format adds to a sum. A lane's four words have kQuads times four values.
template <NarrowFloat kFormat>
struct Words : ByteCodes<kFormat> {
  static constexpr int kValues = 4, kQuads = 4;
  __device__ __forceinline__ static float Dot(const uint32_t (&words)[kLaneWords], int quad, const float4& x,
                                              float sum) {
    const float2 low = FloatsOf(Words::Pair(words[quad], 0)), high = FloatsOf(Words::Pair(words[quad], 1));
    return fmaf(high.y, x.w, fmaf(high.x, x.z, fmaf(low.y, x.y, fmaf(low.x, x.x, sum))));
  }
};

template <>
struct Words<NarrowFloat::kFloat16> {
  static constexpr int kValues = 2, kQuads = 2;
  static constexpr float kScale = 1.0f;
  __device__ __forceinline__ static float Dot(const uint32_t (&words)[kLaneWords], int quad, const float4& x,
                                              float sum) {
    const float2 low = FloatsOf(words[2 * quad]), high = FloatsOf(words[2 * quad + 1]);
    return fmaf(high.y, x.w, fmaf(high.x, x.z, fmaf(low.y, x.y, fmaf(low.x, x.x, sum))));
  }
  __device__ __forceinline__ static uint32_t NanBits(uint32_t) { return 0; }
};

template <NarrowFloat kFormat>
__global__ void __launch_bounds__(kThreads) PackedGemvKernel(const __grid_constant__ Gemv gemv) {
  using Format = Words<kFormat>;
  constexpr int kLaneValues = kLaneWords * Format::kValues, kChunkValues = kWarpSize * kLaneValues;
  extern __shared__ float4 x_quads[];  // [chunks, kQuads, lanes]
  __shared__ float sums_of_warps[2][kWarps][kRows];
  const PackedMatrix& w = gemv.w;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int part = warp % gemv.warps_per_row, group = warp / gemv.warps_per_row;
  const int groups = kWarps / gemv.warps_per_row;
  const int64_t stride = int64_t{gridDim.x} * groups * kRows;

  uint4 next[kRows];
  auto load = [&](int64_t row, int chunk) {
    const int32_t at = chunk * kChunkWords + lane * kLaneWords;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t of_row = min(row + r, w.num_rows - 1);
      next[r] = LoadRowWords(w.words_dev + of_row * w.row_words, at, w.row_words, gemv.aligned);
    }
  };
  const int64_t first_of_block = int64_t{blockIdx.x} * groups * kRows;
  load(first_of_block + group * kRows, part);

  float* const x = reinterpret_cast<float*>(x_quads);
  for (int32_t k = threadIdx.x; k < gemv.chunks * kChunkValues; k += kThreads) {
    float value = 0.0f;
    if (k < w.num_values) {
      value = LoadFloat(gemv.x_dev, gemv.x_type, k);
      if (gemv.column_scale_dev) value *= gemv.column_scale_dev[k];
    }
    const int in_chunk = k % kChunkValues, of_lane = in_chunk / kLaneValues, quad = in_chunk % kLaneValues / 4;
    x[((k / kChunkValues * Format::kQuads + quad) * kWarpSize + of_lane) * 4 + k % 4] = value;
  }
  __syncthreads();

  int buffer = 0;
  for (int64_t block_row = first_of_block; block_row < w.num_rows; block_row += stride, buffer ^= 1) {
    const int64_t row = block_row + group * kRows;
    float sums[kRows] = {};
    uint32_t nan_bits[kRows] = {};
    for (int chunk = part; chunk < gemv.chunks; chunk += gemv.warps_per_row) {
      uint32_t words[kRows][kLaneWords];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        words[r][0] = next[r].x, words[r][1] = next[r].y, words[r][2] = next[r].z, words[r][3] = next[r].w;
      }
      if (chunk + gemv.warps_per_row < gemv.chunks) {
        load(row, chunk + gemv.warps_per_row);
      } else if (block_row + stride < w.num_rows) {
        load(row + stride, part);
      }
#pragma unroll
      for (int quad = 0; quad < Format::kQuads; ++quad) {
        const float4 of_quad = x_quads[(chunk * Format::kQuads + quad) * kWarpSize + lane];
#pragma unroll
        for (int r = 0; r < kRows; ++r) sums[r] = Format::Dot(words[r], quad, of_quad, sums[r]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int word = 0; word < kLaneWords; ++word) nan_bits[r] |= Format::NanBits(words[r][word]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (HasNan(nan_bits[r])) sums[r] = kNan;
#pragma unroll
      for (int distance = kWarpSize / 2; distance; distance /= 2) {
        sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], distance);
      }
      if (lane == 0) sums_of_warps[buffer][warp][r] = sums[r];
    }
    __syncthreads();  // one for each buffer is enough: no warp is two iterations ahead of another
    if (part == 0 && lane < kRows && row + lane < w.num_rows) {
      float sum = 0.0f;
      for (int p = 0; p < gemv.warps_per_row; ++p) sum += sums_of_warps[buffer][warp + p][lane];
      sum *= Format::kScale;
      if (w.row_scale_dev) sum *= w.row_scale_dev[row + lane];
      if (gemv.bias_dev) sum += LoadFloat(gemv.bias_dev, gemv.out_type, row + lane);
      StoreFloat(gemv.out_dev, gemv.out_type, row + lane, sum);
    }
  }
}

template <NarrowFloat kFormat>
void Launch(Gemv gemv, cudaStream_t stream) {
  gemv.chunks = static_cast<int32_t>(CeilDiv(gemv.w.row_words, kChunkWords));
  gemv.warps_per_row = 1;
  while (gemv.warps_per_row < kWarps && 2 * gemv.warps_per_row <= gemv.chunks) gemv.warps_per_row *= 2;
  const int64_t most_values = MostGemvValues(kFormat);
  if (gemv.w.num_values > most_values) {
    Throw<ArgumentError>("columns: want at most ", most_values, ", got ", gemv.w.num_values);
  }
  const size_t shared_bytes = size_t{4} * gemv.chunks * kChunkWords * Words<kFormat>::kValues;
  const auto kernel = &PackedGemvKernel<kFormat>;
  if (shared_bytes > kSharedBytesWithoutAsking) {
    IBP_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(MostSharedBytes() - kStaticBytes)));
  }
  int per_multiprocessor = 0;
  IBP_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, kThreads, shared_bytes));
  const int64_t rows_of_block = int64_t{kWarps} / gemv.warps_per_row * kRows;
  const int64_t resident = int64_t{NumMultiprocessors()} * std::max(per_multiprocessor, 1);
  const auto blocks = static_cast<unsigned>(std::min(CeilDiv(gemv.w.num_rows, rows_of_block), resident));
  kernel<<<blocks, kThreads, shared_bytes, stream>>>(gemv);
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

int64_t MostGemvValues(NarrowFloat format) {
  const int64_t chunk_values = kChunkWords * (format == NarrowFloat::kFloat16 ? 2 : 4);
  const auto most_floats = static_cast<int64_t>((MostSharedBytes() - kStaticBytes) / sizeof(float));
  return most_floats / chunk_values * chunk_values;
}

void LaunchPackedGemv(const PackedMatrix& w, const void* x_dev, ValueType x_type, const float* column_scale_dev,
                      const void* bias_dev, void* out_dev, ValueType out_type, cudaStream_t stream) {
  if (w.num_rows == 0) return;
  Gemv gemv{w, x_dev, x_type, column_scale_dev, bias_dev, out_dev, out_type, w.IsAligned(), 1, 0};
  const auto launch = w.format == NarrowFloat::kFloat16 ? &Launch<NarrowFloat::kFloat16>
                      : w.format == NarrowFloat::kE5m2  ? &Launch<NarrowFloat::kE5m2>
                                                        : &Launch<NarrowFloat::kE4m3>;
  launch(gemv, stream);
}

}  // namespace ibp
