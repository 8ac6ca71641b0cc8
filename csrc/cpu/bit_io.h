// Unaligned little-endian reads and a bit writer. In an anonymous namespace, as all that is compiled for one
// instruction set is (see ibp_row.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "core/bits.h"
#include "core/format.h"

namespace ibp {
namespace {

template <typename Word>
inline Word Load(const uint8_t* p) {
  Word x;
  std::memcpy(&x, p, sizeof(Word));
  return x;
}

constexpr int kReadBitsBytes = 9;

// `count` bits (at most 64) from bit `bit`; reads up to kReadBitsBytes bytes from that bit's byte on.
inline uint64_t ReadBits(const uint8_t* bytes, int64_t bit, int count) {
  const uint8_t* p = bytes + (bit >> 3);
  const int shift = static_cast<int>(bit & 7);
  uint64_t x = Load<uint64_t>(p) >> shift;
  if (shift + count > 64) x |= static_cast<uint64_t>(p[8]) << (64 - shift);
  return x & LowMask<uint64_t>(count);
}

struct BitWriter {
  uint8_t* next;
  uint64_t pending = 0;
  int filled = 0;

  void Put(uint64_t bits, int count) {
    pending |= bits << filled;
    if (filled + count < 64) {
      filled += count;
      return;
    }
    std::memcpy(next, &pending, 8);
    next += 8;
    pending = filled ? bits >> (64 - filled) : 0;
    filled += count - 64;
  }
  // Writes what is pending, up to a whole byte.
  void Finish() { std::memcpy(next, &pending, static_cast<size_t>((filled + 7) / 8)); }
};

}  // namespace
}  // namespace ibp
