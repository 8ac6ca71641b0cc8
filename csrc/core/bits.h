// Bit helpers shared by host and device code. Unsigned words only; shifts by the full width are spelled out.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define IBP_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define IBP_HOST_DEVICE inline
#endif

namespace ibp {

IBP_HOST_DEVICE constexpr int64_t CeilDiv(int64_t x, int64_t y) { return (x + y - 1) / y; }

template <typename Word>
IBP_HOST_DEVICE constexpr Word LowMask(int num_bits) {
  return num_bits >= static_cast<int>(8 * sizeof(Word)) ? static_cast<Word>(~Word{0})
                                                        : static_cast<Word>((Word{1} << num_bits) - 1);
}

static_assert(LowMask<uint64_t>(64) == ~0ull && LowMask<uint64_t>(0) == 0 && LowMask<uint32_t>(32) == ~0u &&
              LowMask<uint32_t>(31) == 0x7fffffffu);

// The word with the lowest bit of every `field_bits`-wide field set; field_bits is a power of two.
template <typename Word>
IBP_HOST_DEVICE constexpr Word FieldLowBits(int field_bits) {
  return static_cast<Word>(~Word{0}) / LowMask<Word>(field_bits);
}

static_assert(FieldLowBits<uint64_t>(8) == 0x0101010101010101ull && FieldLowBits<uint64_t>(64) == 1 &&
              FieldLowBits<uint32_t>(16) == 0x00010001u);

}  // namespace ibp
