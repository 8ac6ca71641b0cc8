// Packed rows on the CPU (core/packed_rows.h): what is chosen for them, and their directory.
#pragma once

#include <cstdint>

#include "cpu/rows.h"

namespace ibp {

struct PackedLength {
  int64_t bytes;
  bool is_payload;
};

// What a row takes whose payload has this many bytes.
PackedLength LengthOf(int64_t payload_bytes, int32_t row_bytes, int32_t slot_bytes, const Packing& packing);

struct PackingChoice {
  int32_t slot_bytes = 0;  // of the longest payload; rows with a longer one are raw
  Packing packing;
  int64_t total_bytes = 0;  // of all rows
};

// The choice with which the rows take the fewest bytes, or a thousandth more if that makes slot_bytes smaller: decoders
// keep that much room for each row. rows_of_length: [row_bytes + 1], rows per payload length; the last are raw.
// least_unit: a power of two.
PackingChoice BestPacking(const int64_t* rows_of_length, int32_t row_bytes, int32_t least_unit);

// Writes the directory, DirectoryBytes(num_rows) bytes, of rows whose payloads take payload_bytes[i] bytes (those of
// raw rows row_bytes or more), the first one starting at first_start. Returns where the last one ends. Throws
// ArgumentError if that is too far.
int64_t LayOutRows(const int32_t* payload_bytes, int64_t num_rows, int32_t row_bytes, int32_t slot_bytes,
                   const Packing& packing, int64_t first_start, PackedRecord* directory);

// Where the rows in these places start, and what LayOutRows takes as their payload_bytes. slots: [n], in range. Throws
// FormatError for a damaged directory.
void FindPackedRows(const SlotRows& rows, const int64_t* slots, int64_t n, int64_t* starts, int32_t* payload_bytes);

// Copies these rows to `out`, whose directory is laid out for them. Throws as FindPackedRows.
void CopyPackedRows(const SlotRows& rows, const int64_t* slots, int64_t n, const MutableSlots& out, int threads);

}  // namespace ibp
