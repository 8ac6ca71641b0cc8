// The fast gather of codec "dict" for bfloat16: a file of its own, since it takes long to compile.
#include "cuda/dict_kernels.h"
#include "cuda/dict_lanes/choose.cuh"

namespace ibp {

std::optional<GatherKernel> ChooseGatherBfloat16(const DeviceDictCodec& codec, const GatherRequest& request,
                                                 int out_alignment) {
  return ChooseDictLanes<Bfloat16>(codec, request, out_alignment);
}

}  // namespace ibp
