// The check of slot buffers that every backend makes.
#pragma once

#include <cstdint>

#include "core/check.h"
#include "core/format.h"

namespace ibp {

// The buffers of num_rows rows in slots; lengths in bytes.
inline void CheckSlotBuffers(int64_t row_bytes, int64_t num_rows, int64_t slot_bytes, int64_t slots_length,
                             int64_t bitmask_length, int64_t overflow_length) {
  const bool needs_index = slot_bytes < row_bytes;
  CheckAtLeast("slot_bytes", needs_index ? int64_t{kOverflowIndexBytes} : int64_t{1}, slot_bytes);
  if (slot_bytes > kMaxRowBytes) Throw<ArgumentError>("slot_bytes: want at most ", kMaxRowBytes, ", got ", slot_bytes);
  const int64_t most_rows = ((int64_t{1} << 62) - kSlackBytes) / slot_bytes;
  if (num_rows < 0 || num_rows > most_rows) {
    Throw<ArgumentError>("num_rows: want 0 to ", most_rows, ", got ", num_rows);
  }
  CheckAtLeast("slots bytes, slack included", num_rows * slot_bytes + kSlackBytes, slots_length);
  CheckAtLeast("bitmask bytes", BitmaskBytes(num_rows), bitmask_length);
  CheckAtLeast("overflow bytes, slack included", kSlackBytes, overflow_length);
}

}  // namespace ibp
