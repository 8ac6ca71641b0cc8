// Pooling of codec "dict" for bfloat16: a file of its own, since it takes long to compile.
#include "cuda/dict_kernels.h"
#include "cuda/dict_lanes/pool.cuh"

namespace ibp {

std::optional<GatherKernel> ChoosePoolBfloat16(const DeviceDictCodec& codec, const GatherRequest& request) {
  return ChoosePoolDictLanes<Bfloat16>(codec, request);
}

}  // namespace ibp
