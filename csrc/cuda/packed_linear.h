// Products of packed weights and dense vectors: codes (core/narrow_floats.h) become floats in registers, and products
// are added up in float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/narrow_floats.h"

namespace ibp {

enum class ValueType : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

// A matrix [num_rows, num_values]. Each row is row_words words of 32 bits, its first value in the low bits of the first
// one; what is left of the last word is 0.
struct PackedMatrix {
  NarrowFloat format = NarrowFloat::kFloat16;
  const uint32_t* words_dev = nullptr;
  int64_t num_rows = 0;
  int32_t num_values = 0, row_words = 0;
  const float* row_scale_dev = nullptr;  // [num_rows], or null: 1

  // Whether 16 bytes of a row can be read at once.
  bool IsAligned() const { return row_words % 4 == 0 && reinterpret_cast<uintptr_t>(words_dev) % 16 == 0; }
};

constexpr int32_t kMaxPackedBatch = 32;

// How many values a row may have at most for LaunchPackedGemv on the current device, which keeps x in shared memory.
int64_t MostGemvValues(NarrowFloat format);

// out[row] = bias[row] + row_scale[row] * sum over k of w[row, k] * column_scale[k] * x[k]. x_dev: [num_values];
// column_scale_dev: the same, or null: 1; bias_dev, or null, and out_dev: [num_rows] of out_type. Throws ArgumentError
// for rows of more than MostGemvValues. Enqueued.
void LaunchPackedGemv(const PackedMatrix& w, const void* x_dev, ValueType x_type, const float* column_scale_dev,
                      const void* bias_dev, void* out_dev, ValueType out_type, cudaStream_t stream);

// out[b, row] = row_scale[row] * sum over k of w[row, k] * x[b, k], float32 [batch, num_rows]. x_dev: [batch, x_stride]
// of x_type, float16 or bfloat16, at a multiple of 16 bytes; x_stride: a multiple of 16, what is behind num_values is
// 0. batch: 1 to kMaxPackedBatch. w: of 8 bits. By the tensor cores: architecture 80 or later, else throws
// ArgumentError.
void LaunchPackedGemm(const PackedMatrix& w, const void* x_dev, ValueType x_type, int32_t x_stride, int32_t batch,
                      float* out_dev, cudaStream_t stream);

}  // namespace ibp
