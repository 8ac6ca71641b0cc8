// Sorts the ids of a gather by where their rows lie.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/gather_request.h"

namespace ibp {

// Bad ids come last. At most kMaxIdsPerLaunch ids; num_places must be below UINT32_MAX. scratch_dev: 256-byte aligned,
// of at least OrderScratchBytes; the request's order lies there afterwards.
int64_t OrderScratchBytes(const GatherRequest& request, int64_t num_ids);
void LaunchOrder(GatherRequest& request, uint8_t* scratch_dev, int64_t scratch_bytes, cudaStream_t stream);

}  // namespace ibp
