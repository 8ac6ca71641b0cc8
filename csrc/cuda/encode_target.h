// Where encoded rows go, in device memory.
#pragma once

#include <cstdint>

namespace ibp {

struct EncodeTarget {
  uint8_t* slots = nullptr;
  int32_t slot_bytes = 0;
  uint32_t* bitmask = nullptr;
  uint8_t* overflow = nullptr;
  int64_t num_overflow = 0;
  const int64_t* overflow_index = nullptr;  // [num_rows]; at least 0 for the rows that were measured as not fitting
  // Becomes the lowest row that does not go with its overflow_index, because it has changed since it was measured. Such
  // a row's slot is zeros, and nothing of it is in the overflow area.
  unsigned long long* changed_row = nullptr;
};

// Where rows go that are encoded in one pass, in device memory. Which rows overflow is not known before.
struct EncodeOnceTarget {
  uint8_t* slots = nullptr;  // slot_bytes: a multiple of 4, less than a row; slots: a multiple of 4, too
  int32_t slot_bytes = 0;
  uint32_t* bitmask = nullptr;
  uint8_t* overflow = nullptr;  // rows that do not fit, in any order; no more than num_overflow of them
  int64_t num_overflow = 0;
  unsigned long long* overflow_count = nullptr;  // becomes how many do not fit, also where that is too many
};

}  // namespace ibp
