#include "cpu/slot_choice.h"

#include <algorithm>
#include <numeric>

#include "core/format.h"

namespace ibp {
namespace {

struct SlotLength {
  int64_t slot_bytes = 0;
  int64_t total_bytes = 0;  // of slots and overflow rows
};

// Among the multiples of `align` below row_bytes, and row_bytes; the shortest of those that take as many.
SlotLength Fewest(const int64_t* rows_of_length, int64_t row_bytes, int64_t align) {
  const int64_t num_rows = std::accumulate(rows_of_length, rows_of_length + row_bytes + 1, int64_t{0});
  const SlotLength raw{row_bytes, num_rows * row_bytes};
  SlotLength best = raw;
  bool found = false;
  int64_t fitting = 0, counted = 0;  // payloads of length below `counted`
  for (int64_t length = align; length < row_bytes; length += align) {
    for (; counted <= length; ++counted) fitting += rows_of_length[counted];
    const int64_t total = num_rows * length + (num_rows - fitting) * row_bytes;
    if (!found || total < best.total_bytes) best = {length, total};
    found = true;
  }
  return found && best.total_bytes <= raw.total_bytes ? best : raw;
}

}  // namespace

int64_t BestSlotBytes(const int64_t* rows_of_length, int64_t row_bytes) {
  const SlotLength shortest = Fewest(rows_of_length, row_bytes, kOverflowIndexBytes);
  const SlotLength aligned = Fewest(rows_of_length, row_bytes, kSectorBytes);
  // On average, when all offsets in a sector are as likely.
  const int64_t fetched = shortest.slot_bytes + kSectorBytes - std::gcd(shortest.slot_bytes, int64_t{kSectorBytes});
  __extension__ using Wide = unsigned __int128;  // bytes of a store times bytes of a row
  const bool worth = Wide(aligned.total_bytes) * Wide(aligned.slot_bytes) <= Wide(shortest.total_bytes) * Wide(fetched);
  const bool small = Wide(100) * Wide(aligned.total_bytes) <= Wide(103) * Wide(shortest.total_bytes);
  return worth && small ? aligned.slot_bytes : shortest.slot_bytes;
}

int64_t BestLeadBytes(const int64_t* rows_of_length, int64_t slot_bytes, bool fetches_once) {
  constexpr int64_t kStep = 16, kSecondFetchBytes = 64;
  int64_t all_rows = 0, all_bytes = 0, longest = slot_bytes;
  for (int64_t length = 0; length <= slot_bytes; ++length) {
    if (rows_of_length[length] == 0) continue;
    all_rows += rows_of_length[length];
    all_bytes += rows_of_length[length] * length;
    longest = length;
  }
  if (all_rows == 0) return slot_bytes;
  if (fetches_once) return longest;
  int64_t best = slot_bytes, fewest = slot_bytes * all_rows;
  int64_t rows = 0, bytes = 0, counted = 0;  // of payloads of length below `counted`
  bool found = false;
  for (int64_t lead = kStep; lead < slot_bytes; lead += kStep) {
    for (; counted <= lead; ++counted) {
      rows += rows_of_length[counted];
      bytes += rows_of_length[counted] * counted;
    }
    const int64_t fetched = lead * rows + (all_bytes - bytes) + kSecondFetchBytes * (all_rows - rows);
    if (!found || fetched < fewest) {
      best = lead;
      fewest = fetched;
    }
    found = true;
  }
  return found && fewest <= slot_bytes * all_rows ? best : slot_bytes;
}

}  // namespace ibp
