// Codec "ibp" as the CPU code uses it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ibp_layout.h"
#include "cpu/row_codec.h"

namespace ibp {

// The row as 64-bit groups. mask, bitval and valid have one word per group; `valid` marks the bits that belong to the
// row (all of them except in the last group). mask and bitval are 0 outside `valid`.
struct IbpCodec final : RowCodec {
  IbpLayout layout;
  int32_t num_groups = 0;
  std::vector<uint64_t> mask, bitval, valid;
  std::vector<uint64_t>
      keeps;            // bit g: chunks of group g that participate leave bits in the payload; 16 bytes to spare
  bool sparse = false;  // few groups do, and no chunk is longer than a group

  // mask, bitval: row_bytes bytes each. Throws ArgumentError.
  IbpCodec(const uint8_t* mask, const uint8_t* bitval, int64_t row_bytes, int64_t chunk_bits);

  const RowOps& Ops(const CodePath& path) const override;
  int64_t DeviceTableBytes(bool encoder) const override;
  void WriteDeviceTables(bool encoder, uint8_t* out) const override;
};

}  // namespace ibp
