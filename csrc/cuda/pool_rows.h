// Pools rows that have been gathered: for codecs and rows that no kernel decodes and pools at once.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/pool_request.h"

namespace ibp {

// One feature. rows_dev: [num_ids, width] of this type, the row of each id; out_column_bytes: as for PoolFeature.
// Returns at once if there are no bags.
void LaunchPoolRows(const PoolRequest& pool, const uint8_t* rows_dev, int32_t width, PoolType type, PoolMode mode,
                    int64_t padding_id, int64_t out_column_bytes, cudaStream_t stream);

}  // namespace ibp
