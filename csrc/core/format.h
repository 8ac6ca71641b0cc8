// The byte format of compressed rows, version kFormatVersion. This file is its one definition; the NumPy oracle
// (ibp_gnn/testing/oracle.py) and the golden vectors (tests/golden/) pin it.
//
// A row is a string of 8 * row_bytes bits: bit k is bit (k % 8) of byte k / 8, so that on a little-endian
// machine it equals the row's words from the first to the last, least significant bit first.
//
// What a payload is depends on the codec. For codec "dict" see core/dict_layout.h.
//
// Codec "ibp" (Invariant Bit Packing, EuroSys 2026). `mask` and `bitval` are bit strings of the row's length;
// bitval is 0 wherever mask is 0. The row is cut into chunks of chunk_bits bits (a power of two, at least 8);
// the last chunk ends with the row. A chunk participates if row & mask == bitval on all its bits.
//
//   payload = [participation bits: one per chunk, 1 = participates]
//             [for each chunk in order: its bits where mask is 0 if it participates, else all its bits]
//
// with no padding in between; payload_bytes = ceil(payload_bits / 8), unused bits of the last byte are 0.
//
// Rows lie in slots of slot_bytes bytes; row i's slot starts at i * slot_bytes. Bit i of the bitmask (bit i % 8
// of byte i / 8; the bitmask is a multiple of 4 bytes long) says what the slot holds:
//   1  the payload; requires payload_bytes < row_bytes and payload_bytes <= slot_bytes
//   0  if slot_bytes >= row_bytes, the raw row; otherwise a uint32 (little endian), the index of the raw row
//      in the overflow area, whose rows are row_bytes apart and in the order of their row numbers
// Unused bytes of a slot are 0. Slots and overflow are followed by kSlackBytes bytes of 0, so that decoders may load
// whole words and vectors.
//
// Rows may also lie end to end, without slots: core/packed_rows.h.
#pragma once

#include <cstdint>

namespace ibp {

constexpr int32_t kFormatVersion = 2;
constexpr int64_t kSlackBytes = 64;
constexpr int32_t kOverflowIndexBytes = 4;
constexpr int32_t kMinChunkBits = 8;
constexpr int32_t kSectorBytes = 32;  // of a GPU's memory: loads fetch whole ones
// Row lengths stay below 2^27 bytes so that every bit offset inside a payload fits an int32.
constexpr int64_t kMaxRowBytes = (int64_t{1} << 27) - 1;

constexpr int64_t BitmaskBytes(int64_t num_rows) { return (num_rows + 31) / 32 * 4; }

static_assert(BitmaskBytes(0) == 0 && BitmaskBytes(1) == 4 && BitmaskBytes(32) == 4 && BitmaskBytes(33) == 8);

}  // namespace ibp
