// The fast gather of codec "dict" for bfloat16: a file of its own, since it takes long to compile.
#include "cuda/gather_dict.h"
#include "cuda/gather_dict_lanes.cuh"

namespace ibp {

bool LaunchGatherBfloat16(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream) {
  return LaunchDictLanes<2, 8>(codec, request, stream);
}

}  // namespace ibp
