// The bit tricks of the fast gather of codec "dict", each with what shows that it is right; those of codes are in
// code_bits.h.
#pragma once

#include <cstdint>

#include "cuda/dict_lanes/code_bits.h"

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

// The selector with which __byte_perm(in_order, 0, .) hands out the bytes of `in_order`: the first to the first value
// of the set, and so on; the others get 0. A nibble of the selector is how many values of the set come before, at most
// 3, which 0x1110 adds up, and 4 more for what is not in the set: that takes a byte of the second word. So no nibble
// carries, and one product and sum is enough.
IBP_HOST_DEVICE constexpr uint32_t ToSetSelector(uint32_t set) { return set * (0x1110u - 4u) + 0x4444u; }

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
