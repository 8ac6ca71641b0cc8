// What the fit of codec "ibp" counts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ibp {

// ones_dev: [8 * row_bytes], added to: how many rows have each bit set.
void LaunchCountOnes(const uint8_t* rows_dev, int64_t num_rows, int32_t row_bytes, int64_t* ones_dev,
                     cudaStream_t stream);

}  // namespace ibp
