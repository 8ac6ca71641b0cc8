// The tables with which a GPU spreads and packs bits without PDEP/PEXT: per 32-bit unit of the row, five masks of
// a parallel-suffix network (the "compress" and "expand" of Warren, Hacker's Delight, section 7-4). Bits move only
// inside a field of min(chunk_bits, 32) bits, so that chunks of 8 and 16 bits stay separate.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "core/ibp_layout.h"

namespace ibp {

constexpr int kExpandSteps = 5;
// Rows of the table: bits the payload keeps, bitval, bits that belong to the row, then one row per step. Rows are
// padded with 0 to a multiple of 4 units, so that a lane can load the entries of up to 4 units at once.
constexpr int kKeepTable = 0, kBitvalTable = 1, kValidTable = 2, kMoveTable = 3;
constexpr int kNumTables = kMoveTable + kExpandSteps;

IBP_HOST_DEVICE constexpr int32_t NumUnits(int32_t row_bytes) { return (row_bytes + 3) / 4; }
IBP_HOST_DEVICE constexpr int32_t TableStride(int32_t row_bytes) { return (row_bytes + 15) / 16 * 4; }

// moves[s]: the bits of a word that a compress shifts right by 2^s in step s, given the bits it keeps.
IBP_HOST_DEVICE void MakeMoves(uint32_t keep, int field_bits, uint32_t moves[kExpandSteps]) {
  for (int s = 0; s < kExpandSteps; ++s) moves[s] = 0;
  for (int base = 0; base < 32; base += field_bits) {
    int target = base;
    for (int bit = base; bit < base + field_bits; ++bit) {
      if (!((keep >> bit) & 1)) continue;
      // A bit moves right by the distance's binary digits, smallest step first.
      const int distance = bit - target++;
      int at = bit;
      for (int s = 0; s < kExpandSteps; ++s) {
        if ((distance >> s) & 1) {
          moves[s] |= uint32_t{1} << at;
          at -= 1 << s;
        }
      }
    }
  }
}

// Bits of x under `keep` moved to the low end of their field; moves = MakeMoves(keep).
IBP_HOST_DEVICE uint32_t PackFields(uint32_t x, uint32_t keep, const uint32_t moves[kExpandSteps]) {
  x &= keep;
  for (int s = 0; s < kExpandSteps; ++s) {
    const uint32_t moving = x & moves[s];
    x = (x ^ moving) | (moving >> (1 << s));
  }
  return x;
}

// The inverse. Steps leave copies of moved bits behind; none of them is under `keep`.
IBP_HOST_DEVICE uint32_t SpreadFields(uint32_t x, uint32_t keep, const uint32_t moves[kExpandSteps]) {
  for (int s = kExpandSteps - 1; s >= 0; --s) {
    x = (x & ~moves[s]) | ((x << (1 << s)) & moves[s]);
  }
  return x & keep;
}

IBP_HOST_DEVICE constexpr int64_t IbpTablesBytes(const IbpLayout& layout) {
  return int64_t{kNumTables} * TableStride(layout.row_bytes) * int64_t{sizeof(uint32_t)};
}

// mask, bitval: row_bytes bytes; tables: [kNumTables, TableStride(row_bytes)].
inline void MakeIbpTables(const IbpLayout& layout, const uint8_t* mask, const uint8_t* bitval, uint32_t* tables) {
  const int32_t stride = TableStride(layout.row_bytes);
  const int field_bits = layout.chunk_bits < 32 ? layout.chunk_bits : 32;
  for (int32_t u = 0; u < stride; ++u) {
    uint32_t mask_word = 0, bitval_word = 0, valid = 0;
    for (int byte = 0; byte < 4 && 4 * u + byte < layout.row_bytes; ++byte) {
      mask_word |= static_cast<uint32_t>(mask[4 * u + byte]) << (8 * byte);
      bitval_word |= static_cast<uint32_t>(bitval[4 * u + byte]) << (8 * byte);
      valid |= uint32_t{0xff} << (8 * byte);
    }
    const uint32_t keep = valid & ~mask_word;
    uint32_t moves[kExpandSteps];
    MakeMoves(keep, field_bits, moves);
    tables[kKeepTable * stride + u] = keep;
    tables[kBitvalTable * stride + u] = bitval_word;
    tables[kValidTable * stride + u] = valid;
    for (int s = 0; s < kExpandSteps; ++s) tables[(kMoveTable + s) * stride + u] = moves[s];
  }
}

}  // namespace ibp
