// Which kernel of the fast gather of codec "dict" decodes which codec and rows. Compiles all kernels of a float type.
#pragma once

#include <optional>

#include "cuda/dict_lanes/kernel.cuh"
#include "cuda/gather_launch.h"

namespace ibp {

// What of a request decides whether the fast kernels take its rows, and which.
struct RowsToGather {
  bool aligned;  // slots start at sectors, and all rows at multiples of 4 bytes
  int32_t slot_bytes, lead_bytes;
  int out_alignment;

  RowsToGather(const GatherRequest& request, int out_alignment_)
      : aligned((request.packing.is_packed() ? request.packing.unit_bytes : request.slot_bytes) % 4 == 0),
        slot_bytes(request.slot_bytes),
        lead_bytes(request.lead_bytes),
        out_alignment(out_alignment_) {
    for (int i = 0; i < request.num_segments; ++i) {
      aligned &= reinterpret_cast<uintptr_t>(request.segments[i].rows.slots) % kSectorBytes == 0;
    }
  }
};

// The kernel of one form and shape, if it takes the rows. `whole`: as for DictLanes.
template <typename Float, typename Form, typename Shape>
std::optional<GatherKernel> KernelOfShape(const DictLayout& layout, const RowsToGather& rows, bool whole) {
  using Whole = DictLanes<Float, Form, Shape, true>;
  using Any = DictLanes<Float, Form, Shape, false>;
  static_assert(kMostSharedBytes / kWarpsPerBlock <= UINT16_MAX, "RowEntry::end holds the end of any window");
  // A payload starts up to kBaseAlign - 4 bytes into its window.
  const int32_t window_bytes = RoundUp(rows.lead_bytes + Any::kBaseAlign - 4, kLoadBytes);
  const size_t shared_bytes = DictShared<Any>(layout, window_bytes).block_bytes();
  const bool fits = Any::kLongRows
                        ? shared_bytes <= MostSharedBytes()
                        : layout.num_values <= Any::kSteps * Any::kStepValues && window_bytes <= Any::kFetchBytes;
  if (!fits) return std::nullopt;
  const auto* function = whole ? reinterpret_cast<const void*>(&DictLanesKernel<Whole, RowsOutput<Whole>>)
                               : reinterpret_cast<const void*>(&DictLanesKernel<Any, RowsOutput<Any>>);
  return GatherKernel(function, rows.lead_bytes, window_bytes, shared_bytes, Any::kGroups);
}

// Fewest lanes a row that have it in one step and its payload in one load; long rows take several.
template <typename Float, typename Form>
std::optional<GatherKernel> KernelThatFits(const DictLayout& layout, const RowsToGather& rows) {
  const bool whole =
      (rows.out_alignment | layout.row_bytes) % 16 == 0 && (Form::kZeroCode || layout.codes_bytes() % 4 == 0);
  if (auto kernel = KernelOfShape<Float, Form, ShortRows<8>>(layout, rows, whole)) return kernel;
  if (auto kernel = KernelOfShape<Float, Form, ShortRows<16>>(layout, rows, whole)) return kernel;
  if (auto kernel = KernelOfShape<Float, Form, ShortRows<32>>(layout, rows, whole)) return kernel;
  if (auto kernel = KernelOfShape<Float, Form, TwoStepRows>(layout, rows, whole)) return kernel;
  if (layout.num_values > 512) {
    if (auto kernel = KernelOfShape<Float, Form, MediumRows<Float>>(layout, rows, whole)) return kernel;
  }
  return KernelOfShape<Float, Form, LongRows>(layout, rows, whole);
}

template <typename Float, typename Form>
std::optional<GatherKernel> KernelOfForm(const DictLayout& layout, RowsToGather rows) {
  // Payloads are fetched at once. With a zero code they can be of any length.
  if (Form::kZeroCode) rows.lead_bytes = rows.slot_bytes;
  // Where not even what every row has fits the slot every payload is damaged, which the general kernel sees to.
  const int32_t longest = std::min({rows.lead_bytes, rows.slot_bytes, layout.row_bytes - 1});
  const int32_t least = layout.codes_bytes() + (Form::kZeroCode ? 0 : layout.LowBytes(layout.num_values));
  if (longest < least) return std::nullopt;
  return KernelThatFits<Float, Form>(layout, rows);
}

// Whether values of this type are cut, and coded, in the way that the fast kernels know.
template <typename Float>
bool TakesLayout(const DeviceDictCodec& codec) {
  const DictLayout& layout = codec.layout;
  return layout.value_bits == 8 * static_cast<int32_t>(sizeof(typename Float::Word)) &&
         layout.low_bits() == Float::kLowBits && layout.trim_bits == 0 &&
         (layout.code_bits == 2 || layout.code_bits == 3) && codec.packed_dev;
}

template <typename Float>
std::optional<GatherKernel> ChooseDictLanes(const DeviceDictCodec& codec, const GatherRequest& request,
                                            int out_alignment) {
  const DictLayout& layout = codec.layout;
  const RowsToGather rows(request, out_alignment);
  if (!TakesLayout<Float>(codec) || !rows.aligned ||
      out_alignment % static_cast<int>(sizeof(typename Float::Word)) != 0) {
    return std::nullopt;
  }
  // A dictionary for each column, one for the row, or that and a zero code.
  if (layout.zero_code) {
    if (layout.per_column) return std::nullopt;
    return KernelOfForm<Float, DictForm<false, true>>(layout, rows);
  }
  if (!layout.sign_low) return std::nullopt;
  return layout.per_column ? KernelOfForm<Float, DictForm<true, false>>(layout, rows)
                           : KernelOfForm<Float, DictForm<false, false>>(layout, rows);
}

}  // namespace ibp
