// The CPU backend: many rows at a time, multi-threaded. Callers own all memory.
#pragma once

#include <cstdint>

#include "core/packed_rows.h"
#include "cpu/row_ops.h"

namespace ibp {

// Rows in one of the layouts of core/format.h, in CPU memory. Buffers end with the slack that it says.
struct SlotRows {
  const uint8_t* slots = nullptr;
  const uint8_t* bitmask = nullptr;  // of packed rows: their directory
  const uint8_t* overflow = nullptr;
  int64_t num_rows = 0;
  int64_t num_overflow = 0;
  int32_t slot_bytes = 0;
  int32_t row_bytes = 0;
  Packing packing;
  int64_t packed_bytes = 0;  // that all packed rows take

  const PackedRecord* directory() const { return reinterpret_cast<const PackedRecord*>(bitmask); }
};

struct MutableSlots {
  uint8_t* slots = nullptr;     // num_rows * slot_bytes, or packed_bytes; written completely
  uint8_t* bitmask = nullptr;   // BitmaskBytes(num_rows), written completely; of packed rows: their directory, read
  uint8_t* overflow = nullptr;  // num_overflow rows, of which the first one has index first_overflow
  int32_t slot_bytes = 0;
  int64_t first_overflow = 0;
  int64_t num_overflow = 0;
  Packing packing;
  int64_t packed_bytes = 0;
  int64_t first_start = 0;  // where, in the directory's count, `slots` starts
};

// ones[k] = how many of the rows have bit k set; ones holds 8 * row_bytes counters.
void CountOnes(const uint8_t* rows, int64_t num_rows, int64_t row_bytes, int64_t* ones, int threads);

// payload_bytes[i] = length of row i's payload, whether or not it is shorter than the row. If another thread writes to
// `rows` meanwhile, the length of a changed row means nothing; nothing else is harmed.
void MeasureRows(const RowCodec& codec, const CodePath& path, const uint8_t* rows, int64_t num_rows,
                 int32_t* payload_bytes, int threads);

// overflow_index: [num_rows]; ignored where slots hold raw rows, and of packed rows. Otherwise the index, in the
// overflow area, of each row that did not fit its slot when it was measured, and a negative number for every other row.
// first_row: number of the first row, for messages.
// Another thread may write to `rows` meanwhile: each row is read once, and what is written is what that reading gave.
// Throws ArgumentError if a row fits now and did not when it was measured, or the other way round, and if an index is
// not one of the overflow area. `out` is then not to be used.
void EncodeRows(const RowCodec& codec, const CodePath& path, const uint8_t* rows, int64_t num_rows,
                const int64_t* overflow_index, int64_t first_row, const MutableSlots& out, int threads);

// out: [num_ids, row_bytes]; ids must lie in [0, rows.num_rows). slot_of: [rows.num_rows], the slot of each id, or
// null: id i is in slot i. Throws FormatError if a row or its entry of slot_of is damaged, and out_of_range for an id
// that another thread has made one that is none.
void DecodeRows(const RowCodec& codec, const CodePath& path, const SlotRows& rows, const int32_t* slot_of,
                const int64_t* ids, int64_t num_ids, uint8_t* out, int threads);

// Position of the first id outside [0, num_rows), or -1.
int64_t FirstBadId(const int64_t* ids, int64_t num_ids, int64_t num_rows);

// Copies ids, which must lie in [0, num_rows), and returns whether they do: in one pass, by this thread alone. num_rows
// is at most 2^31. If another thread writes to `ids` meanwhile, what is checked is what is copied.
template <typename Id>
bool StageIds(const Id* ids, int64_t num_ids, int64_t num_rows, int32_t* out) {
  // The sign of any of these numbers is that of a bad id.
  Id any = 0;
  const Id last = static_cast<Id>(num_rows - 1);
  for (int64_t i = 0; i < num_ids; ++i) {
    const Id id = ids[i];
    any |= id | static_cast<Id>(last - (id < 0 ? Id{0} : id));
    out[i] = static_cast<int32_t>(id);
  }
  return any >= 0;
}

}  // namespace ibp
