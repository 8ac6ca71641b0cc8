// Which kernel of the fast gather of codec "dict" decodes which codec and rows. Compiles all kernels of a float type.
#pragma once

#include <optional>

#include "cuda/dict_lanes/kernel.cuh"
#include "cuda/gather_launch.h"

namespace ibp {

// The kernel of one form and shape, if it takes the rows. `whole`: as for DictLanes. kHasWhole: whether there is a
// kernel of its own for it.
template <typename Float, typename Form, typename Shape, bool kHasWhole = true>
std::optional<GatherKernel> KernelOfShape(const DictLayout& layout, int32_t lead_bytes, bool whole) {
  using Whole = DictLanes<Float, Form, Shape, kHasWhole>;
  using Any = DictLanes<Float, Form, Shape, false>;
  static_assert(kMostSharedBytes / kWarpsPerBlock <= UINT16_MAX, "RowEntry::end holds the end of any window");
  // A payload starts up to kBaseAlign - 4 bytes into its window: slots are multiples of 4 bytes.
  const int32_t window_bytes = RoundUp(lead_bytes + Any::kBaseAlign - 4, kLoadBytes);
  const size_t shared_bytes = DictShared<Any>(layout, window_bytes).block_bytes();
  const bool fits = Any::kLongRows
                        ? shared_bytes <= MostSharedBytes()
                        : layout.num_values <= Any::kSteps * Any::kStepValues && window_bytes <= Any::kFetchBytes;
  if (!fits) return std::nullopt;
  // With a zero code it makes no difference where low bits start, and little where rows do; and dictionaries for each
  // column are few: kernels take long to compile.
  const auto* function = reinterpret_cast<const void*>(&DictLanesKernel<Any, RowsOutput<Any>>);
  if constexpr (!Form::kZeroCode && !Form::kPerColumn) {
    if (whole) function = reinterpret_cast<const void*>(&DictLanesKernel<Whole, RowsOutput<Whole>>);
  }
  return GatherKernel(function, lead_bytes, window_bytes, shared_bytes, Any::kGroups);
}

// The first of these shapes that takes the rows.
template <typename Float, typename Form, typename... Shapes>
std::optional<GatherKernel> KernelOfShapes(const DictLayout& layout, int32_t lead_bytes, bool whole) {
  std::optional<GatherKernel> kernel;
  static_cast<void>(((kernel = KernelOfShape<Float, Form, Shapes>(layout, lead_bytes, whole)) || ...));
  return kernel;
}

// The shape whose lanes and steps a row fills best: it has kLanes * kSteps parts of 16 bytes. Rows of 97 to 128 of
// these would leave two of six steps empty; of long rows a tile has four.
template <typename Float, typename Form>
std::optional<GatherKernel> KernelOfForm(const DictLayout& layout, int32_t lead_bytes, int out_alignment) {
  const bool whole = (out_alignment | layout.row_bytes) % 16 == 0 && layout.codes_bytes() % 4 == 0;
  const bool four_steps = layout.num_values > 96 * Float::kValues && layout.num_values <= 128 * Float::kValues;
  if (!four_steps) {
    if (auto kernel =
            KernelOfShapes<Float, Form, ShortRows<8>, ShortRows<16>, ThreeStepRows<8>, ShortRows<32>, ThreeStepRows<16>,
                           TwoStepRows, SixStepRows<16>, SixStepRows<32>>(layout, lead_bytes, whole)) {
      return kernel;
    }
  }
  return KernelOfShapes<Float, Form, LongRows>(layout, lead_bytes, whole);
}

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

// Whether a slot holds what every row has. If not, every payload is damaged, which the general kernel sees to.
template <typename Form>
bool HoldsWhatAllRowsHave(const DictLayout& layout, const RowsToGather& rows, int32_t lead_bytes) {
  const int32_t longest = std::min({lead_bytes, rows.slot_bytes, layout.row_bytes - 1});
  return longest >= layout.codes_bytes() + (Form::kZeroCode ? 0 : layout.LowBytes(layout.num_values));
}

template <typename Float, typename Form>
std::optional<GatherKernel> KernelOfForm(const DictLayout& layout, const RowsToGather& rows) {
  // Payloads are fetched at once. With a zero code they can be of any length.
  const int32_t lead_bytes = Form::kZeroCode ? rows.slot_bytes : rows.lead_bytes;
  if (!HoldsWhatAllRowsHave<Form>(layout, rows, lead_bytes)) return std::nullopt;
  return KernelOfForm<Float, Form>(layout, lead_bytes, rows.out_alignment);
}

// Whether values of this type are cut, and coded, in the way that the fast kernels know.
template <typename Float>
bool TakesLayout(const DeviceDictCodec& codec) {
  const DictLayout& layout = codec.layout;
  return layout.value_bits == 8 * static_cast<int32_t>(sizeof(typename Float::Word)) &&
         layout.low_bits() == Float::kLowBits && layout.trim_bits == Float::kTrimBits &&
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
