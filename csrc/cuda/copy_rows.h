// Rows as they are, by number.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ibp {

// out_dev[at_dev[i]] = rows_dev[i], of row_bytes bytes each; those with an `at` outside of [0, out_rows) are left out.
void LaunchScatterRows(const uint8_t* rows_dev, int32_t row_bytes, const int64_t* at_dev, int64_t num_rows,
                       uint8_t* out_dev, int64_t out_rows, cudaStream_t stream);

// Copies uncompressed rows (device memory or mapped host memory) by id; ids are not checked. For benchmarks.
void LaunchCopyRows(const uint8_t* rows, int32_t row_bytes, const int64_t* ids_dev, const int64_t* positions_dev,
                    int64_t num_ids, uint8_t* out_dev, int32_t max_blocks, cudaStream_t stream);

// A kernel that does nothing, in one block: what a launch costs. For benchmarks.
void LaunchNothing(cudaStream_t stream);

}  // namespace ibp
