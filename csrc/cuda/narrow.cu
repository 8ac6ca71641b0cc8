#include <algorithm>
#include <type_traits>

#include "cuda/cuda_check.h"
#include "cuda/narrow.h"

namespace ibp {
namespace {

constexpr int kThreads = 256;

template <typename Format>
using Code = std::conditional_t<Format::kBits == 16, uint16_t, uint8_t>;

// A thread has kGroup values: four bytes of codes, and the last thread perhaps fewer.
template <typename Format>
__global__ void __launch_bounds__(kThreads)
    NarrowKernel(const float* __restrict__ values, const uint32_t* __restrict__ random, Rounding rounding,
                 int64_t count, uint8_t* __restrict__ codes) {
  constexpr int kGroup = 4 / sizeof(Code<Format>);
  const int64_t stride = int64_t{gridDim.x} * kThreads * kGroup;
  for (int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kGroup; first < count; first += stride) {
    uint32_t word = 0;
    const int in_group = static_cast<int>(min(count - first, int64_t{kGroup}));
#pragma unroll
    for (int v = 0; v < kGroup; ++v) {
      if (v >= in_group) break;
      const uint32_t code = NarrowFloat32<Format>(__float_as_uint(values[first + v]), rounding,
                                                  rounding.stochastic ? random[first + v] : 0);
      word |= code << (v * Format::kBits);
    }
    uint8_t* const out = codes + first * static_cast<int64_t>(sizeof(Code<Format>));
    if (in_group == kGroup) {
      *reinterpret_cast<uint32_t*>(out) = word;
    } else {
      for (int byte = 0; byte < in_group * static_cast<int>(sizeof(Code<Format>)); ++byte) {
        out[byte] = static_cast<uint8_t>(word >> (8 * byte));
      }
    }
  }
}

template <typename Format>
__global__ void __launch_bounds__(kThreads)
    WidenKernel(const uint8_t* __restrict__ codes, int64_t count, float* __restrict__ values) {
  constexpr int kGroup = 4 / sizeof(Code<Format>);
  const int64_t stride = int64_t{gridDim.x} * kThreads * kGroup;
  for (int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kGroup; first < count; first += stride) {
    const int in_group = static_cast<int>(min(count - first, int64_t{kGroup}));
    const uint8_t* const in = codes + first * static_cast<int64_t>(sizeof(Code<Format>));
    uint32_t word = 0;
    if (in_group == kGroup) {
      word = *reinterpret_cast<const uint32_t*>(in);
    } else {
      for (int byte = 0; byte < in_group * static_cast<int>(sizeof(Code<Format>)); ++byte) {
        word |= uint32_t{in[byte]} << (8 * byte);
      }
    }
#pragma unroll
    for (int v = 0; v < kGroup; ++v) {
      if (v >= in_group) break;
      const uint32_t code = word >> (v * Format::kBits) & LowMask<uint32_t>(Format::kBits);
      values[first + v] = __uint_as_float(WidenToFloat32<Format>(code));
    }
  }
}

unsigned Blocks(int64_t count, int64_t values_per_thread) {
  const int64_t useful = CeilDiv(count, kThreads * values_per_thread);
  return static_cast<unsigned>(std::min(useful, int64_t{16} * NumMultiprocessors()));
}

}  // namespace

void LaunchNarrow(NarrowFloat format, Rounding rounding, const float* values_dev, const uint32_t* random_dev,
                  int64_t count, uint8_t* codes_dev, cudaStream_t stream) {
  if (count == 0) return;
  const auto kernel = format == NarrowFloat::kFloat16 ? &NarrowKernel<Float16Format>
                      : format == NarrowFloat::kE5m2  ? &NarrowKernel<E5m2Format>
                                                      : &NarrowKernel<E4m3Format>;
  const unsigned blocks = Blocks(count, format == NarrowFloat::kFloat16 ? 2 : 4);
  kernel<<<blocks, kThreads, 0, stream>>>(values_dev, random_dev, rounding, count, codes_dev);
  IBP_CUDA_CHECK(cudaGetLastError());
}

void LaunchWiden(NarrowFloat format, const uint8_t* codes_dev, int64_t count, float* values_dev, cudaStream_t stream) {
  if (count == 0) return;
  const auto kernel = format == NarrowFloat::kFloat16 ? &WidenKernel<Float16Format>
                      : format == NarrowFloat::kE5m2  ? &WidenKernel<E5m2Format>
                                                      : &WidenKernel<E4m3Format>;
  const unsigned blocks = Blocks(count, format == NarrowFloat::kFloat16 ? 2 : 4);
  kernel<<<blocks, kThreads, 0, stream>>>(codes_dev, count, values_dev);
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
