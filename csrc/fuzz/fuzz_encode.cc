// Fuzz target: rows of any bytes. All code paths measure the same lengths and write the same bytes, all of a buffer and
// nothing outside of it, and every path reads the rows back from what was written. Slot lengths are chosen from the
// lengths, and from counts of any size.
#include "core/format.h"
#include "cpu/rows.h"
#include "cpu/slot_choice.h"
#include "fuzz/fuzzed_codec.h"

namespace ibp {
namespace {

void ChooseSlots(const std::vector<int64_t>& rows_of_length, int32_t row_bytes) {
  const int64_t slot_bytes = BestSlotBytes(rows_of_length.data(), row_bytes);
  FUZZ_CHECK(slot_bytes == row_bytes || (slot_bytes >= kOverflowIndexBytes && slot_bytes < row_bytes));
  std::vector<int64_t> fitting(rows_of_length.begin(), rows_of_length.begin() + slot_bytes + 1);
  if (slot_bytes == row_bytes) fitting.back() = 0;
  for (const bool once : {false, true}) {
    const int64_t lead_bytes = BestLeadBytes(fitting.data(), slot_bytes, once);
    FUZZ_CHECK(lead_bytes >= 0 && lead_bytes <= slot_bytes);
  }
}

}  // namespace
}  // namespace ibp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length) {
  using namespace ibp;
  FuzzInput input(bytes, length);
  const auto codec = FuzzedCodec(input);
  if (codec == nullptr) return 0;
  const int32_t row_bytes = codec->row_bytes;
  const int64_t num_rows = input.Between(0, 12);
  const uint8_t slot_choice = input.Byte();
  const bool any_counts = input.Flag();
  std::vector<int64_t> rows_of_length(static_cast<size_t>(row_bytes + 1));
  for (int64_t i = 0; any_counts && i < 8; ++i) {
    rows_of_length[static_cast<size_t>(input.Between(0, row_bytes))] =
        input.Any<uint32_t>();  // rows that a store can have
  }
  if (any_counts) ChooseSlots(rows_of_length, row_bytes);
  const Bytes rows = input.Of(num_rows * row_bytes);

  std::vector<int32_t> lengths(static_cast<size_t>(num_rows)), others(lengths.size());
  for (const CodePath* path : Paths()) {
    MeasureRows(*codec, *path, rows.data(), num_rows, others.data(), 1);
    if (path == Paths().front()) lengths = others;
    FUZZ_CHECK(others == lengths);
  }
  std::fill(rows_of_length.begin(), rows_of_length.end(), 0);
  for (const int32_t payload_bytes : lengths) {
    FUZZ_CHECK(payload_bytes > 0);
    ++rows_of_length[static_cast<size_t>(std::min(payload_bytes, row_bytes))];
  }
  ChooseSlots(rows_of_length, row_bytes);

  const int32_t chosen = slot_choice == 0 ? static_cast<int32_t>(BestSlotBytes(rows_of_length.data(), row_bytes))
                                          : 1 + slot_choice * row_bytes / 200;
  const int32_t slot_bytes = std::max(chosen, std::min(kOverflowIndexBytes, row_bytes));
  std::vector<int64_t> overflow_index(lengths.size(), -1), ids(lengths.size());
  int64_t num_overflow = 0;
  for (size_t row = 0; row < lengths.size(); ++row) {
    ids[row] = static_cast<int64_t>(lengths.size() - row) - 1;
    if (slot_bytes < row_bytes && lengths[row] > slot_bytes) overflow_index[row] = num_overflow++;
  }
  Bytes first_slots, first_bitmask, first_overflow;
  for (const CodePath* path : Paths()) {
    Bytes slots(static_cast<size_t>(num_rows * slot_bytes), uint8_t{0xa5});
    Bytes bitmask(static_cast<size_t>(BitmaskBytes(num_rows)), uint8_t{0xa5});
    Bytes overflow(static_cast<size_t>(num_overflow * row_bytes), uint8_t{0xa5});
    const MutableSlots out{slots.data(), bitmask.data(), overflow.data(), slot_bytes, 0, num_overflow, {}, 0, 0};
    EncodeRows(*codec, *path, rows.data(), num_rows, overflow_index.data(), 0, out, 1);
    if (path == Paths().front()) {
      first_slots = slots;
      first_bitmask = bitmask;
      first_overflow = overflow;
    }
    FUZZ_CHECK(slots == first_slots && bitmask == first_bitmask && overflow == first_overflow);
  }
  first_slots.resize(first_slots.size() + kSlackBytes);
  first_overflow.resize(first_overflow.size() + kSlackBytes);
  first_slots.shrink_to_fit();
  first_overflow.shrink_to_fit();
  for (const CodePath* path : Paths()) {
    Bytes read(rows.size());
    DecodeRows(*codec, *path,
               {first_slots.data(), first_bitmask.data(), first_overflow.data(), num_rows, num_overflow, slot_bytes},
               nullptr, ids.data(), num_rows, read.data(), 1);
    for (int64_t row = 0; row < num_rows; ++row) {
      FUZZ_CHECK(std::equal(read.begin() + row * row_bytes, read.begin() + (row + 1) * row_bytes,
                            rows.begin() + ids[static_cast<size_t>(row)] * row_bytes));
    }
  }
  return 0;
}
