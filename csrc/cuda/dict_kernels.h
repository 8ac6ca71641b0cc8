// The kernels of codec "dict". See cuda/gpu_codec.h for what they do.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/device_codecs.h"
#include "cuda/encode_target.h"
#include "cuda/gather_launch.h"

namespace ibp {

void LaunchMeasure(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
                   cudaStream_t stream);
int64_t EncodeScratchBytes(const DictLayout& layout);
void LaunchEncode(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target,
                  uint8_t* scratch_dev, cudaStream_t stream);
// Whether there is a kernel that encodes rows of this codec in one pass.
bool CanEncodeOnce(const DeviceDictCodec& codec, int64_t slot_bytes);
void LaunchEncodeOnce(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows,
                      const EncodeOnceTarget& target, cudaStream_t stream);
GatherKernel ChooseGather(const DeviceDictCodec& codec, const GatherRequest& request, int out_alignment);

// The fast ones. None if the codec or the rows are not of the form that they decode.
std::optional<GatherKernel> ChooseGatherFloat32(const DeviceDictCodec& codec, const GatherRequest& request,
                                                int out_alignment);
std::optional<GatherKernel> ChooseGatherBfloat16(const DeviceDictCodec& codec, const GatherRequest& request,
                                                 int out_alignment);
std::optional<GatherKernel> ChooseGatherFloat16(const DeviceDictCodec& codec, const GatherRequest& request,
                                                int out_alignment);
// Values of 32 bits that end with zeros, as those of LOSSY stores.
std::optional<GatherKernel> ChooseGatherTrimmed(const DeviceDictCodec& codec, const GatherRequest& request,
                                                int out_alignment);

// Those that pool. None if there is none for the codec or the rows.
std::optional<GatherKernel> ChoosePoolFloat32(const DeviceDictCodec& codec, const GatherRequest& request);
std::optional<GatherKernel> ChoosePoolBfloat16(const DeviceDictCodec& codec, const GatherRequest& request);
std::optional<GatherKernel> ChoosePoolFloat16(const DeviceDictCodec& codec, const GatherRequest& request);

}  // namespace ibp
