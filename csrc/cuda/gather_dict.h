// The parts of the gather of codec "dict". Each returns false, having done nothing, for forms that it does not decode.
#pragma once

#include "cuda/kernels.h"

namespace ibp {

bool LaunchGatherFloat32(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream);
bool LaunchGatherBfloat16(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream);
bool LaunchGatherFloat16(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream);

}  // namespace ibp
