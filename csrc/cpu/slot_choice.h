// How long slots are, and how much of one a GPU fetches first: from how many rows have a payload of each length.
#pragma once

#include <cstdint>

namespace ibp {

// rows_of_length: [row_bytes + 1]; the last one counts all rows that are stored raw.
//
// Returns the slot length, a multiple of 4 below row_bytes or row_bytes itself, for which slots and overflow rows take
// the fewest bytes; or a multiple of a sector if that takes at most 3 % more, and no more than it saves of what a
// gather fetches, which is whole sectors. Slots that start a sector share none with their neighbours: on an H200, rows
// of 128 float32 in slots of 448 bytes came 7 % faster from GPU memory than in slots of 436 or 444, and 5 % faster over
// PCIe.
int64_t BestSlotBytes(const int64_t* rows_of_length, int64_t row_bytes);

// rows_of_length: [slot_bytes + 1], of the payloads that fit. fetches_once: whether kernels fetch no more than this at
// all, so that it has to suffice for each of them.
//
// Returns few enough bytes not to fetch what is not needed, and enough that a second fetch, whose latency is counted as
// 64 bytes, is rare.
int64_t BestLeadBytes(const int64_t* rows_of_length, int64_t slot_bytes, bool fetches_once);

}  // namespace ibp
