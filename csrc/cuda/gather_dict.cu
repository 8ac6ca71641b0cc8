// The gather of codec "dict": which kernel takes it, and the one for any form.
#include "cuda/dict_kernels.h"
#include "cuda/gather_dict_any.cuh"

namespace ibp {

GatherKernel ChooseGather(const DeviceDictCodec& codec, const GatherRequest& request, int out_alignment) {
  for (const auto choose : {&ChooseGatherFloat32, &ChooseGatherBfloat16, &ChooseGatherFloat16, &ChooseGatherTrimmed}) {
    if (const auto kernel = choose(codec, request, out_alignment)) return *kernel;
  }
  return WithWord(codec.layout, [&](auto word) { return MakeGatherKernel<AnyDictDecoder<decltype(word)>>(request); });
}

}  // namespace ibp
