// The bit tricks of the fast gather of codec "dict", each with what shows that it is right. "Nibbles" are four codes,
// the first lowest, each in four bits, as __byte_perm takes its selectors. A set of values is written as the lowest
// bits of their nibbles: bit 4k for value k.
#pragma once

#include <cstdint>

#include "core/bits.h"

namespace ibp {

// __byte_perm as its documentation has it, for the checks below.
constexpr uint32_t PermuteBytes(uint32_t x, uint32_t y, uint32_t selector) {
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t from = (selector >> (4 * k)) & 7;
    result |= (((from < 4 ? x : y) >> (8 * (from % 4))) & 0xff) << (8 * k);
  }
  return result;
}

// Four codes of kCodeBits bits each to nibbles: code k moves from bit k * kCodeBits to bit 4k.
template <int kCodeBits>
IBP_HOST_DEVICE constexpr uint32_t CodeNibbles(uint32_t codes) {
  if constexpr (kCodeBits == 3) {
    return (codes & 0x7) | ((codes << 1) & 0x70) | ((codes << 2) & 0x700) | ((codes << 3) & 0x7000);
  } else {
    return (codes & 0x3) | ((codes << 2) & 0x30) | ((codes << 4) & 0x300) | ((codes << 6) & 0x3000);
  }
}

// Which nibbles are the escape, whose kCodeBits bits are all 1. Shifting right brings the bits of a nibble to its
// lowest one; what comes from the next nibble lands above it, and the mask drops that.
template <int kCodeBits>
IBP_HOST_DEVICE constexpr uint32_t FullNibbles(uint32_t nibbles) {
  const uint32_t two = nibbles & (nibbles >> 1);
  return (kCodeBits == 3 ? two & (nibbles >> 2) : two) & 0x11111111u;
}

// Which nibbles are the zero code. It is one less than the escape: all its bits are 1 but the lowest.
template <int kCodeBits>
IBP_HOST_DEVICE constexpr uint32_t ZeroNibbles(uint32_t nibbles) {
  const uint32_t high = kCodeBits == 3 ? (nibbles >> 2) & (nibbles >> 1) : nibbles >> 1;
  return high & ~nibbles & 0x1111u;
}

// The zero code, as often as it fits 32 bits.
template <int kCodeBits>
IBP_HOST_DEVICE constexpr uint32_t ZeroCodes() {
  uint32_t codes = 0;
  for (int bit = 0; bit < 32; bit += kCodeBits) codes |= ((1u << kCodeBits) - 2) << bit;
  return codes;
}

// All four codes, whatever their neighbours are.
template <int kCodeBits>
constexpr bool NibblesAreRight() {
  const uint32_t escape = (1u << kCodeBits) - 1;
  for (uint32_t codes = 0; codes < 1u << (4 * kCodeBits); ++codes) {
    const uint32_t nibbles = CodeNibbles<kCodeBits>(codes | 0x1u << (4 * kCodeBits));  // what follows changes nothing
    uint32_t expected = 0, full = 0, zero = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t code = (codes >> (k * kCodeBits)) & escape;
      expected |= code << (4 * k);
      full |= uint32_t{code == escape} << (4 * k);
      zero |= uint32_t{code == escape - 1} << (4 * k);
    }
    if (nibbles != expected || FullNibbles<kCodeBits>(nibbles) != full || ZeroNibbles<kCodeBits>(nibbles) != zero) {
      return false;
    }
  }
  return ZeroNibbles<kCodeBits>(CodeNibbles<kCodeBits>(ZeroCodes<kCodeBits>())) == 0x1111u;
}
static_assert(NibblesAreRight<2>() && NibblesAreRight<3>());

// The selector with which __byte_perm(in_order, 0, .) hands out the bytes of `in_order`: the first to the first value
// of the set, and so on; the others get 0. The product adds the set to itself one, two and three nibbles higher: each
// nibble then counts the values before it, at most 3, so nothing carries. Bit 2 of a selector takes a byte of the
// second word.
IBP_HOST_DEVICE constexpr uint32_t ToSetSelector(uint32_t set) {
  const uint32_t before = set * 0x1110u;
  return (before & 0x3333u) | ((~set & 0x1111u) << 2);
}

constexpr bool ToSetIsRight() {
  for (uint32_t members = 0; members < 16; ++members) {
    uint32_t set = 0, expected = 0, next = 1;
    for (int k = 0; k < 4; ++k) {
      if (!(members >> k & 1)) continue;
      set |= 1u << (4 * k);
      expected |= next++ << (8 * k);
    }
    if (PermuteBytes(0x04030201, 0, ToSetSelector(set)) != expected) return false;
  }
  return true;
}
static_assert(ToSetIsRight());

__device__ __forceinline__ uint32_t ToSet(uint32_t in_order, uint32_t set) {
  return __byte_perm(in_order, 0, ToSetSelector(set));
}

// Two 16-bit values rotated right by one bit: all bits move down, and the lowest of each comes back at its top. The
// masks drop what crosses from one value into the other.
IBP_HOST_DEVICE constexpr uint32_t RotateHalves(uint32_t x) {
  return ((x >> 1) & 0x7fff7fffu) | ((x << 15) & 0x80008000u);
}
static_assert(RotateHalves(0x00010001u) == 0x80008000u && RotateHalves(0x80018000u) == 0xc0004000u &&
              RotateHalves(0x00018000u) == 0x80004000u && RotateHalves(0xfffefffeu) == 0x7fff7fffu);

}  // namespace ibp
