// float32 values that end with zeros, because they hold what had fewer bits: those of LOSSY stores. And which kernels
// decode them: fewer shapes than for other floats, since the link is what bounds such gathers.
#pragma once

#include <optional>

#include "cuda/dict_lanes/choose.cuh"

namespace ibp {

// Spread: a word a value, its low bits lowest. Join puts the symbol on top; Rotate moves the low bits up to it, after
// the lowest of them, the sign, has gone to the top if `by` is 1.
template <int kLowBits_>
struct TrimmedFloat32 : FloatType<uint32_t, kLowBits_, 4, 24 - kLowBits_> {
  using Base = FloatType<uint32_t, kLowBits_, 4, 24 - kLowBits_>;
  using Low = LowBits<TrimmedFloat32>;
  static constexpr uint32_t kMask = LowMask<uint32_t>(kLowBits_);

  __device__ __forceinline__ static void Spread(const Low& low, uint32_t (&spread)[Base::kSpread]) {
    SpreadPresent(low, 0x1111u, spread);
  }
  __device__ __forceinline__ static void SpreadPresent(Low low, uint32_t present, uint32_t (&spread)[Base::kSpread]) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const uint32_t has = (present >> (4 * v)) & 1;
      spread[v] = has ? low.words[0] & kMask : 0;
      low.Drop(kLowBits_ * has);
    }
  }
  __device__ __forceinline__ static uint32_t Join(const uint32_t (&spread)[Base::kSpread], const uint32_t (&symbols)[1],
                                                  int w) {
    return __byte_perm(spread[w], symbols[0], 0x4210 + (w << 12));  // byte w of the symbols on top
  }
  __device__ __forceinline__ static uint32_t Rotate(uint32_t word, int by) {
    const uint32_t high = (word & 0xff000000u) >> by, low = (word & kMask) >> by << Base::kTrimBits;
    return high | low | (by ? word << 31 : 0);
  }
};

template <typename Float, typename Form>
std::optional<GatherKernel> TrimmedKernelOfForm(const DictLayout& layout, const RowsToGather& rows) {
  const int32_t lead_bytes = Form::kZeroCode ? rows.slot_bytes : rows.lead_bytes;
  if (!HoldsWhatAllRowsHave<Form>(layout, rows, lead_bytes)) return std::nullopt;
  if (auto kernel = KernelOfShape<Float, Form, ShortRows<32>, false>(layout, lead_bytes, false)) return kernel;
  if (auto kernel = KernelOfShape<Float, Form, SixStepRows<32>, false>(layout, lead_bytes, false)) return kernel;
  return KernelOfShape<Float, Form, LongRows, false>(layout, lead_bytes, false);
}

}  // namespace ibp
