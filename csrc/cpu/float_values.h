// Values of 16-bit floats as float32, and back. Plain loops without branches, which compilers make vector code of.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/pooling.h"

namespace ibp {

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <PoolType kType>
struct PooledValue;

template <>
struct PooledValue<PoolType::kFloat32> {
  using Word = uint32_t;
  static float ToFloat(Word bits) { return FloatOf(bits); }
  static Word Round(float value) { return BitsOf(value); }
};

template <>
struct PooledValue<PoolType::kBfloat16> {
  using Word = uint16_t;
  static float ToFloat(Word bits) { return FloatOf(uint32_t{bits} << 16); }
  static Word Round(float value) {
    const uint32_t bits = BitsOf(value);
    return static_cast<Word>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
  }
};

template <>
struct PooledValue<PoolType::kFloat16> {
  using Word = uint16_t;
  // The exponent's bias grows by 112, which a product does for subnormals, too.
  static float ToFloat(Word bits) {
    const uint32_t scaled = BitsOf(FloatOf((bits & 0x7fffu) << 13) * 0x1p112f);
    const uint32_t top = scaled >= BitsOf(65536.0f) ? 0x7f800000u : 0;  // infinite, or NaN
    return FloatOf(scaled | top | (uint32_t{bits} & 0x8000u) << 16);
  }
  static Word Round(float value) {
    const uint32_t bits = BitsOf(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
    // Below the smallest normal number: adding 0.5 leaves multiples of 2^-24, the smallest subnormal.
    const uint32_t subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    const uint32_t rounded = magnitude < BitsOf(0x1p-14f)    ? subnormal
                             : magnitude >= BitsOf(65520.0f) ? 0x7c00u
                                                             : normal;
    return static_cast<Word>(sign | rounded);
  }
};

}  // namespace ibp
