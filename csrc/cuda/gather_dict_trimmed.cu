// The fast gather of codec "dict" for float32 values that end with zeros: of bfloat16, float16, e4m3 and e5m2.
#include "cuda/dict_kernels.h"
#include "cuda/dict_lanes/trimmed.cuh"

namespace ibp {
namespace {

template <typename Float>
std::optional<GatherKernel> Choose(const DeviceDictCodec& codec, const RowsToGather& rows) {
  if (!TakesLayout<Float>(codec)) return std::nullopt;
  const DictLayout& layout = codec.layout;
  if (layout.zero_code) {
    if (layout.per_column) return std::nullopt;
    return TrimmedKernelOfForm<Float, DictForm<false, true>>(layout, rows);
  }
  if (!layout.sign_low) return std::nullopt;
  return layout.per_column ? TrimmedKernelOfForm<Float, DictForm<true, false>>(layout, rows)
                           : TrimmedKernelOfForm<Float, DictForm<false, false>>(layout, rows);
}

}  // namespace

std::optional<GatherKernel> ChooseGatherTrimmed(const DeviceDictCodec& codec, const GatherRequest& request,
                                                int out_alignment) {
  const RowsToGather rows(request, out_alignment);
  if (!rows.aligned || out_alignment % 4 != 0) return std::nullopt;
  // Sign and mantissa: of e5m2 3 bits, e4m3 4, bfloat16 8, float16 11.
  for (const auto choose : {&Choose<TrimmedFloat32<3>>, &Choose<TrimmedFloat32<4>>, &Choose<TrimmedFloat32<8>>,
                            &Choose<TrimmedFloat32<11>>}) {
    if (const auto kernel = choose(codec, rows)) return kernel;
  }
  return std::nullopt;
}

}  // namespace ibp
