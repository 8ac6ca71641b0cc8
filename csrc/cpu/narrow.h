// Values of 16 and 8 bits (core/narrow_floats.h) from float32 and back, on several threads.
#pragma once

#include <cstdint>

#include "core/narrow_floats.h"

namespace ibp {

// codes: [count] of 2 or 1 bytes each. random: [count], of stochastic rounding only.
void NarrowValues(NarrowFloat format, Rounding rounding, const float* values, const uint32_t* random, int64_t count,
                  uint8_t* codes, int threads);
void WidenValues(NarrowFloat format, const uint8_t* codes, int64_t count, float* values, int threads);

}  // namespace ibp
