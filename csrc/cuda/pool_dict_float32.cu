// Pooling of codec "dict" for float32: a file of its own, since it takes long to compile.
#include "cuda/dict_kernels.h"
#include "cuda/dict_lanes/pool.cuh"

namespace ibp {

std::optional<GatherKernel> ChoosePoolFloat32(const DeviceDictCodec& codec, const GatherRequest& request) {
  return ChoosePoolDictLanes<Float32>(codec, request);
}

}  // namespace ibp
