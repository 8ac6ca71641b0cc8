// Codes of codec "dict", several at once. "Nibbles" are the codes of one or two quads, the first lowest, each in four
// bits, as __byte_perm takes its selectors. A set of values is written as the lowest bits of their nibbles: bit 4k for
// value k.
#pragma once

#include <cstdint>

#include "core/bits.h"

namespace ibp {

// The set of all values of so many quads.
template <int kQuads>
constexpr uint32_t kAllValues = kQuads == 1 ? 0x1111u : 0x11111111u;

// How codes of 2 or 3 bits are told apart, those of one or two quads at once. Kernels take it as an argument: one for
// both lengths takes half the time to compile, and what is an argument takes no register.
struct CodeBits {
  int bits;
  int quad_shift, pair_shift, code_shift;  // how far the upper half of two quads, of a quad and of a pair moves up
  uint32_t quad, pairs;                    // the lower four of eight codes; of four at each half, the lower two
  uint32_t even, nibbles;                  // the codes' bits in nibbles: of every second one, of all
  uint32_t escape_to_top;                  // adds to each nibble what makes 8 of the escape
  uint32_t zero_codes;                     // the zero code, as often as it fits 32 bits

  IBP_HOST_DEVICE explicit constexpr CodeBits(int bits_)
      : bits(bits_),
        quad_shift(16 - 4 * bits_),
        pair_shift(8 - 2 * bits_),
        code_shift(4 - bits_),
        quad(LowMask<uint32_t>(4 * bits_)),
        pairs(LowMask<uint32_t>(2 * bits_) * 0x00010001u),
        even(LowMask<uint32_t>(bits_) * 0x01010101u),
        nibbles(LowMask<uint32_t>(bits_) * 0x11111111u),
        escape_to_top((8 - LowMask<uint32_t>(bits_)) * 0x11111111u),
        zero_codes(bits_ == 3 ? 0xb6db6db6u : 0xaaaaaaaau) {}

  // kQuads * 4 codes, which may be followed by others, to nibbles; of one quad, only the lower four count. First the
  // upper quad moves up to bit 16, then of each the upper two codes by half of that, then every second code.
  template <int kQuads>
  IBP_HOST_DEVICE constexpr uint32_t Nibbles(uint32_t codes) const {
    const uint32_t apart = kQuads == 1 ? codes : (codes & quad) | ((codes << quad_shift) & ~quad);
    const uint32_t two = (apart & pairs) | ((apart << pair_shift) & ~pairs);
    return ((two & even) | ((two << code_shift) & ~even)) & nibbles;
  }
  // Which nibbles are the escape, the highest code: adding brings it to 8 and all others to less, so nothing carries.
  template <int kQuads>
  IBP_HOST_DEVICE constexpr uint32_t Escapes(uint32_t nibbles) const {
    return ((nibbles + escape_to_top) >> 3) & kAllValues<kQuads>;
  }
  // Which nibbles are not the zero code. That is one less than the escape: adding one more brings both to 8 or 9.
  template <int kQuads>
  IBP_HOST_DEVICE constexpr uint32_t NotZeros(uint32_t nibbles) const {
    const uint32_t top = nibbles + escape_to_top;
    return ((~(top + 0x11111111u) | top) >> 3) & kAllValues<kQuads>;
  }
};

// All codes of a quad, whatever follows; alone, and as either of two.
constexpr bool CodeBitsAreRight(int bits) {
  const CodeBits are(bits);
  const uint32_t escape = (1u << bits) - 1, behind = ~0u << (4 * bits), behind_two = bits == 3 ? 0xff000000u : ~0xffffu;
  for (uint32_t codes = 0; codes < 1u << (4 * bits); ++codes) {
    uint32_t nibbles = 0, escapes = 0, not_zeros = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t code = (codes >> (k * bits)) & escape;
      nibbles |= code << (4 * k);
      escapes |= uint32_t{code == escape} << (4 * k);
      not_zeros |= uint32_t{code != escape - 1} << (4 * k);
    }
    for (const uint32_t tail : {0u, behind}) {
      const uint32_t one = are.Nibbles<1>(codes | tail);
      if ((one & 0xffffu) != nibbles || are.Escapes<1>(one) != escapes || are.NotZeros<1>(one) != not_zeros)
        return false;
    }
    // 0 and the escape beside them
    for (const uint32_t other : {0u, ~behind}) {
      const uint32_t first = are.Nibbles<2>(codes | other << (4 * bits) | behind_two);
      const uint32_t second = are.Nibbles<2>(other | codes << (4 * bits));
      if ((first & 0xffffu) != nibbles || second >> 16 != nibbles || (are.Escapes<2>(first) & 0xffffu) != escapes ||
          are.Escapes<2>(second) >> 16 != escapes || (are.NotZeros<2>(first) & 0xffffu) != not_zeros ||
          are.NotZeros<2>(second) >> 16 != not_zeros) {
        return false;
      }
    }
  }
  return are.NotZeros<2>(are.Nibbles<2>(are.zero_codes)) == 0;
}
static_assert(CodeBitsAreRight(2) && CodeBitsAreRight(3));

}  // namespace ibp
