// The fast gather of codec "dict" for float32: a file of its own, since it takes long to compile.
#include "cuda/gather_dict.h"
#include "cuda/gather_dict_lanes.cuh"

namespace ibp {

bool LaunchGatherFloat32(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream) {
  return LaunchDictLanes<4, 24>(codec, request, stream);
}

}  // namespace ibp
