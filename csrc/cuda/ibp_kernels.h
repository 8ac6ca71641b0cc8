// The kernels of codec "ibp". See cuda/gpu_codec.h for what they do.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/device_codecs.h"
#include "cuda/encode_target.h"
#include "cuda/gather_launch.h"

namespace ibp {

void LaunchMeasure(const DeviceIbpCodec& codec, const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
                   cudaStream_t stream);
int64_t EncodeScratchBytes(const IbpLayout& layout);
void LaunchEncode(const DeviceIbpCodec& codec, const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target,
                  uint8_t* scratch_dev, cudaStream_t stream);
GatherKernel ChooseGather(const DeviceIbpCodec& codec, const GatherRequest& request, int out_alignment);

}  // namespace ibp
