// Pooling of codec "dict" for float16: a file of its own, since it takes long to compile.
#include "cuda/dict_kernels.h"
#include "cuda/dict_lanes/pool.cuh"

namespace ibp {

std::optional<GatherKernel> ChoosePoolFloat16(const DeviceDictCodec& codec, const GatherRequest& request) {
  return ChoosePoolDictLanes<Float16>(codec, request);
}

}  // namespace ibp
