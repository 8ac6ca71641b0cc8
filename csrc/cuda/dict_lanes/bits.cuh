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

// How codes of 2 or 3 bits are told apart. Kernels read the bits when they run: one for both lengths takes up to 1 %
// more instructions than one for each, and half the time to compile.
struct CodeBits {
  int bits;
  uint32_t pair;           // the lower two of four codes
  uint32_t even, nibbles;  // the codes' bits in nibbles: of the first and third, of all
  uint32_t escape_to_top;  // adds to each nibble what makes 8 of the escape
  uint32_t zero_codes;     // the zero code, as often as it fits 32 bits

  IBP_HOST_DEVICE explicit constexpr CodeBits(int bits_)
      : bits(bits_),
        pair(LowMask<uint32_t>(2 * bits_)),
        even(LowMask<uint32_t>(bits_) * 0x0101u),
        nibbles(LowMask<uint32_t>(bits_) * 0x1111u),
        escape_to_top((8 - LowMask<uint32_t>(bits_)) * 0x1111u),
        zero_codes(bits_ == 3 ? 0xb6db6db6u : 0xaaaaaaaau) {}

  // Four codes, which may be followed by others, to nibbles. First the upper two move up to bit 8, then the second and
  // the fourth move up by half of that.
  IBP_HOST_DEVICE constexpr uint32_t Nibbles(uint32_t codes) const {
    const uint32_t pairs = (codes & pair) | ((codes << (8 - 2 * bits)) & ~pair);
    return ((pairs & even) | ((pairs << (4 - bits)) & ~even)) & nibbles;
  }
  // Which nibbles are the escape, the highest code: adding brings it to 8 and all others to less, so nothing carries.
  IBP_HOST_DEVICE constexpr uint32_t Escapes(uint32_t nibbles) const {
    return ((nibbles + escape_to_top) >> 3) & 0x1111u;
  }
  // Which nibbles are not the zero code. That is one less than the escape: adding one more brings both to 8 or 9.
  IBP_HOST_DEVICE constexpr uint32_t NotZeros(uint32_t nibbles) const {
    const uint32_t top = nibbles + escape_to_top;
    return ((~(top + 0x1111u) | top) >> 3) & 0x1111u;
  }
};

// All four codes, whatever they are and whatever follows.
constexpr bool CodeBitsAreRight(int bits) {
  const CodeBits codes_are(bits);
  const uint32_t escape = (1u << bits) - 1;
  for (uint32_t codes = 0; codes < 1u << (4 * bits); ++codes) {
    uint32_t nibbles = 0, escapes = 0, not_zeros = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t code = (codes >> (k * bits)) & escape;
      nibbles |= code << (4 * k);
      escapes |= uint32_t{code == escape} << (4 * k);
      not_zeros |= uint32_t{code != escape - 1} << (4 * k);
    }
    if (codes_are.Nibbles(codes) != nibbles || codes_are.Nibbles(codes | ~0u << (4 * bits)) != nibbles ||
        codes_are.Escapes(nibbles) != escapes || codes_are.NotZeros(nibbles) != not_zeros) {
      return false;
    }
  }
  return codes_are.NotZeros(codes_are.Nibbles(codes_are.zero_codes)) == 0;
}
static_assert(CodeBitsAreRight(2) && CodeBitsAreRight(3));

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
