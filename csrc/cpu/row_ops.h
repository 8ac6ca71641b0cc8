// The three operations on one row that have an instruction-set specific version, for every codec.
#pragma once

#include <cstdint>

#include "cpu/row_codec.h"

namespace ibp {

struct RowOps {
  // Returns the payload's length in bytes; row_bytes for a row that has none. `scratch`: scratch_words words.
  int32_t (*measure)(const RowCodec&, const uint8_t* row, uint64_t* scratch);
  // Writes the payload of a row just measured with this scratch: all of payload_bytes bytes, and no more.
  void (*encode)(const RowCodec&, const uint8_t* row, const uint64_t* scratch, uint8_t* payload, int32_t payload_bytes);
  // Reads at most kSlackBytes past payload + limit_bytes, and writes `row` only: each path says, beside a
  // static_assert, how many its loads may read. Returns false, with `row` unspecified, if the payload would be longer
  // than limit_bytes.
  bool (*decode)(const RowCodec&, const uint8_t* payload, int32_t limit_bytes, uint8_t* row);
};

struct CodePath {
  RowOps dict, ibp;
  // Copies whole cache lines, all addresses and `bytes` being multiples of one, past the caches.
  void (*stream_lines)(uint8_t* to, const uint8_t* from, int64_t bytes);
  const char* name;
};

extern const CodePath kScalarPath;
#if defined(IBP_HAVE_AVX2)
extern const CodePath kAvx2Path;
extern const CodePath kAvx512Path;
#endif

// The fastest path that this CPU runs; IBP_GNN_CPU=scalar in the environment forces the scalar one.
const CodePath& SelectCodePath();
// "auto", "scalar", "avx2" or "avx512"; throws ArgumentError if the CPU or the build lacks it.
const CodePath& CodePathByName(const char* name);

}  // namespace ibp
