// A fitted "ibp" codec as the CPU code uses it: the row as 64-bit groups.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ibp_layout.h"

namespace ibp {

// mask, bitval and valid have one word per group of 64 row bits; `valid` marks the bits that belong to the row
// (all of them except in the last group). mask and bitval are 0 outside `valid`.
struct IbpCodec {
  IbpLayout layout;
  int32_t num_groups = 0;
  std::vector<uint64_t> mask, bitval, valid;
};

// mask, bitval: layout.row_bytes bytes each. Throws ArgumentError.
IbpCodec MakeIbpCodec(const uint8_t* mask, const uint8_t* bitval, int64_t row_bytes, int64_t chunk_bits);

}  // namespace ibp
