// Pooled rows on the CPU: what core/pooling.h says, over rows in the slot format.
#pragma once

#include <cstdint>

#include "core/pooling.h"
#include "cpu/rows.h"

namespace ibp {

// Bag b has the ids from ids[offsets[b]] up to ids[offsets[b + 1]].
struct Bags {
  const int64_t* ids = nullptr;
  const int64_t* offsets = nullptr;  // [num_bags + 1], not falling, within the ids
  int64_t num_bags = 0;
  const float* weights = nullptr;  // one for each id, or null: all are 1
  int64_t padding_id = -1;         // an id to leave out; negative: none
  PoolMode mode = PoolMode::kSum;
};

// out: [num_bags, row_bytes]. Rows consist of values of this type. slot_of, and what is thrown: as for DecodeRows.
void PoolRows(const RowCodec& codec, const CodePath& path, const SlotRows& rows, const int32_t* slot_of,
              const Bags& bags, PoolType type, uint8_t* out, int threads);

}  // namespace ibp
