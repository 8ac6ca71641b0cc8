// What a fitted "ibp" codec is made of, and the checks that every backend relies on.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "core/format.h"

namespace ibp {

struct IbpLayout {
  int32_t row_bytes = 0;
  int32_t chunk_bits = 0;
  int32_t num_chunks = 0;

  int32_t max_payload_bits() const { return num_chunks + 8 * row_bytes; }
};

inline IbpLayout MakeIbpLayout(int64_t row_bytes, int64_t chunk_bits) {
  if (row_bytes < 1 || row_bytes > kMaxRowBytes) {
    Throw<ArgumentError>("row_bytes: want 1 to ", kMaxRowBytes, ", got ", row_bytes);
  }
  const bool power_of_two = chunk_bits > 0 && (chunk_bits & (chunk_bits - 1)) == 0;
  if (!power_of_two || chunk_bits < kMinChunkBits || chunk_bits > (int64_t{1} << 30)) {
    Throw<ArgumentError>("chunk_bits: want a power of two from ", kMinChunkBits, " to 2^30, got ", chunk_bits);
  }
  IbpLayout layout;
  layout.row_bytes = static_cast<int32_t>(row_bytes);
  layout.chunk_bits = static_cast<int32_t>(chunk_bits);
  layout.num_chunks = static_cast<int32_t>((8 * row_bytes + chunk_bits - 1) / chunk_bits);
  return layout;
}

// mask, bitval: row_bytes bytes each.
inline void CheckInvariantBits(const IbpLayout& layout, const uint8_t* mask, const uint8_t* bitval) {
  for (int32_t i = 0; i < layout.row_bytes; ++i) {
    if (bitval[i] & ~mask[i]) {
      Throw<ArgumentError>("bitval: want 0 wherever mask is 0, got ", int{bitval[i]}, " under mask ", int{mask[i]},
                           " at byte ", i);
    }
  }
}

}  // namespace ibp
