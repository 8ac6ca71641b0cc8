// Values of 16 and 8 bits (core/narrow_floats.h) from float32 and back.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/narrow_floats.h"

namespace ibp {

// codes_dev: [count] of 2 or 1 bytes each, at a multiple of 4 bytes. random_dev: [count], of stochastic rounding only.
// Enqueued; both return at once if there are no values.
void LaunchNarrow(NarrowFloat format, Rounding rounding, const float* values_dev, const uint32_t* random_dev,
                  int64_t count, uint8_t* codes_dev, cudaStream_t stream);
void LaunchWiden(NarrowFloat format, const uint8_t* codes_dev, int64_t count, float* values_dev, cudaStream_t stream);

}  // namespace ibp
