#include "cpu/narrow.h"

#include <array>
#include <cstring>

#include "cpu/parallel.h"

namespace ibp {
namespace {

constexpr int64_t kGrain = 4096;  // values

template <typename Format>
using Code = std::conditional_t<Format::kBits == 16, uint16_t, uint8_t>;

template <typename Format>
void Narrow(Rounding rounding, const float* values, const uint32_t* random, int64_t count, uint8_t* codes,
            int threads) {
  ParallelFor(count, kGrain, 4, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, values + i, 4);
      const auto code =
          static_cast<Code<Format>>(NarrowFloat32<Format>(bits, rounding, rounding.stochastic ? random[i] : 0));
      std::memcpy(codes + i * static_cast<int64_t>(sizeof(code)), &code, sizeof(code));
    }
  });
}

template <typename Format>
void Widen(const uint8_t* codes, int64_t count, float* values, int threads) {
  // Of all codes: 0.4 ns a value where the operations take 2.
  constexpr size_t kCodes = size_t{1} << Format::kBits;
  static const std::array<uint32_t, kCodes> bits_of = [] {
    std::array<uint32_t, kCodes> bits;
    for (size_t code = 0; code < kCodes; ++code) bits[code] = WidenToFloat32<Format>(static_cast<uint32_t>(code));
    return bits;
  }();
  ParallelFor(count, kGrain, 4, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Code<Format> code;
      std::memcpy(&code, codes + i * static_cast<int64_t>(sizeof(code)), sizeof(code));
      std::memcpy(values + i, &bits_of[code], 4);
    }
  });
}

}  // namespace

void NarrowValues(NarrowFloat format, Rounding rounding, const float* values, const uint32_t* random, int64_t count,
                  uint8_t* codes, int threads) {
  const auto narrow = format == NarrowFloat::kFloat16 ? &Narrow<Float16Format>
                      : format == NarrowFloat::kE5m2  ? &Narrow<E5m2Format>
                                                      : &Narrow<E4m3Format>;
  narrow(rounding, values, random, count, codes, threads);
}

void WidenValues(NarrowFloat format, const uint8_t* codes, int64_t count, float* values, int threads) {
  const auto widen = format == NarrowFloat::kFloat16 ? &Widen<Float16Format>
                     : format == NarrowFloat::kE5m2  ? &Widen<E5m2Format>
                                                     : &Widen<E4m3Format>;
  widen(codes, count, values, threads);
}

}  // namespace ibp
