// The three operations on one row that have an instruction-set specific version.
#pragma once

#include <cstdint>

#include "cpu/ibp_codec.h"

namespace ibp {

// `participation`: scratch of ceil(num_chunks / 64) + 1 words, written by measure, read by encode.
struct RowOps {
  // Returns the payload's length in bytes.
  int32_t (*measure)(const IbpCodec&, const uint8_t* row, uint64_t* participation);
  // Writes the payload for a row just measured; `payload` holds payload_bytes bytes, all of them 0.
  void (*encode)(const IbpCodec&, const uint8_t* row, const uint64_t* participation, uint8_t* payload,
                 int32_t payload_bytes);
  // Reads at most 16 bytes past payload + limit_bytes. Returns false, with `row` unspecified, if the payload
  // would be longer than limit_bytes.
  bool (*decode)(const IbpCodec&, const uint8_t* payload, int32_t limit_bytes, uint8_t* row);
  const char* name;
};

extern const RowOps kScalarRowOps;
#if defined(IBP_HAVE_AVX2)
extern const RowOps kAvx2RowOps;
#endif

// The fastest set that this CPU runs; IBP_GNN_CPU=scalar in the environment forces the scalar one.
const RowOps& SelectRowOps();
// "auto", "scalar" or "avx2"; throws ArgumentError if the CPU or the build lacks it.
const RowOps& RowOpsByName(const char* name);

}  // namespace ibp
