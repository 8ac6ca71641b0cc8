// Floats of 16 and 8 bits, by integer operations alone: no device needs units for them.
//
//   name     exponent  mantissa  bias  largest  above it
//   float16         5        10    15    65504  inf, then NaN
//   e5m2            5         2    15    57344  inf, then NaN
//   e4m3            4         3     7      448  no inf; the code above is NaN
//
// A code is sign, exponent, mantissa, as in a float32. An exponent of 0 stands for subnormal values.
#pragma once

#include "core/bits.h"
#include "core/check.h"

namespace ibp {

enum class NarrowFloat : int32_t { kFloat16 = 0, kE5m2 = 1, kE4m3 = 2 };

constexpr int32_t NarrowBytes(NarrowFloat format) { return format == NarrowFloat::kFloat16 ? 2 : 1; }

// Throws ArgumentError unless it is the number of one.
inline void CheckNarrowFloat(int64_t format) {
  if (format < 0 || format > static_cast<int64_t>(NarrowFloat::kE4m3)) {
    Throw<ArgumentError>("format: want 0 to 2, got ", format);
  }
}

template <int kExponentBits_, int kMantissaBits_, uint32_t kLargest_, uint32_t kBeyond_, uint32_t kNan_>
struct NarrowFormat {
  static constexpr int kMantissaBits = kMantissaBits_;
  static constexpr int kBias = (1 << (kExponentBits_ - 1)) - 1;
  static constexpr int kBits = 1 + kExponentBits_ + kMantissaBits_;
  static constexpr uint32_t kLargest = kLargest_;  // the codes without the sign: of the largest value,
  static constexpr uint32_t kBeyond = kBeyond_;    // of what is too large for it, and
  static constexpr uint32_t kNan = kNan_;          // of NaN
};
using Float16Format = NarrowFormat<5, 10, 0x7bff, 0x7c00, 0x7e00>;
using E5m2Format = NarrowFormat<5, 2, 0x7b, 0x7c, 0x7f>;
using E4m3Format = NarrowFormat<4, 3, 0x7e, 0x7f, 0x7f>;

struct Rounding {
  bool saturate = false;    // what is too large, inf too, becomes the largest value, not kBeyond
  bool stochastic = false;  // up or down by chance, by how near each is; else to nearest, ties to even
};

// x: the bits of a float32; random: 32 of them, for stochastic rounding. Returns the code. A float16 NaN keeps the top
// bits of its payload, as processors do it.
template <typename Format>
IBP_HOST_DEVICE uint32_t NarrowFloat32(uint32_t x, Rounding rounding, uint32_t random) {
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr uint32_t kInf = 0x7f800000u;
  const uint32_t sign = x >> 31 << (Format::kBits - 1);
  const uint32_t magnitude = x & 0x7fffffffu;
  if (magnitude > kInf) {
    return sign | Format::kNan | (Format::kBits == 16 ? (magnitude >> kDropped & LowMask<uint32_t>(10)) : 0);
  }
  if (magnitude == kInf) return sign | (rounding.saturate ? Format::kLargest : Format::kBeyond);
  // The value in units of the smallest bit of a code, times 2^shift.
  int shift = kDropped;
  uint32_t units = magnitude - (uint32_t{127 - Format::kBias} << 23);
  const int exponent = static_cast<int>(magnitude >> 23);
  if (exponent < 128 - Format::kBias) {  // subnormal as a code
    units = (magnitude & 0x7fffffu) | (exponent ? 0x800000u : 0);
    shift += 128 - Format::kBias - (exponent ? exponent : 1);
    if (shift > 31) return sign;  // less than 2^-7 units
  }
  const uint32_t rest = LowMask<uint32_t>(shift);
  const uint32_t up = rounding.stochastic ? random & rest : (rest >> 1) + (units >> shift & 1);
  const uint32_t code = (units + up) >> shift;
  if (code <= Format::kLargest) return sign | code;
  return sign | (rounding.saturate ? Format::kLargest : Format::kBeyond);
}

// Returns the bits of a float32. A float16 NaN keeps its payload and becomes quiet.
template <typename Format>
IBP_HOST_DEVICE uint32_t WidenToFloat32(uint32_t code) {
  constexpr int kDropped = 23 - Format::kMantissaBits;
  const uint32_t sign = code >> (Format::kBits - 1) << 31;
  uint32_t magnitude = code & LowMask<uint32_t>(Format::kBits - 1);
  if (magnitude > Format::kLargest) {
    if (Format::kBeyond != Format::kNan && magnitude == Format::kBeyond) return sign | 0x7f800000u;
    return sign | 0x7fc00000u | (magnitude << kDropped & 0x7fffffu);
  }
  if (magnitude >> Format::kMantissaBits)
    return sign | ((magnitude << kDropped) + (uint32_t{127 - Format::kBias} << 23));
  if (magnitude == 0) return sign;
  int exponent = 128 - Format::kBias;  // of the smallest normal value
  while (!(magnitude >> Format::kMantissaBits)) {
    magnitude <<= 1;
    --exponent;
  }
  return sign | (static_cast<uint32_t>(exponent) << 23) | (magnitude << kDropped & 0x7fffffu);
}

}  // namespace ibp
