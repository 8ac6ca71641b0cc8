// The gather of codec "dict": which kernel takes it, and the one for any form.
#include "cuda/gather_dict.h"
#include "cuda/gather_dict_any.cuh"

namespace ibp {

void LaunchGather(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream) {
  if (request.num_ids == 0) return;
  if (LaunchGatherFloat32(codec, request, stream) || LaunchGatherBfloat16(codec, request, stream) ||
      LaunchGatherFloat16(codec, request, stream)) {
    return;
  }
  WithWord(codec.layout,
           [&](auto word) { LaunchGatherKernel<AnyDictDecoder<decltype(word)>>(codec, request, stream); });
}

}  // namespace ibp
