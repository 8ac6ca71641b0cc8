// Fuzz target: slots, bitmask, overflow rows, ids and a table of slots of any bytes, read by every code path. Each row
// is refused by all paths in the same words, or is the same row on all of them; nothing outside the buffers is read. A
// row that was read is encoded again, and comes back.
#include <stdexcept>
#include <string>

#include "core/format.h"
#include "core/slot_buffers.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "fuzz/fuzzed_codec.h"

namespace ibp {
namespace {

struct Read {
  Bytes rows;
  std::string error;
};

Read ReadRows(const RowCodec& codec, const CodePath& path, const SlotRows& rows, const int32_t* slot_of,
              const std::vector<int64_t>& ids) {
  Read read{Bytes(ids.size() * static_cast<size_t>(codec.row_bytes)), ""};
  try {
    DecodeRows(codec, path, rows, slot_of, ids.data(), static_cast<int64_t>(ids.size()), read.rows.data(), 1);
  } catch (const FormatError& error) {
    read.error = error.what();
  } catch (const std::out_of_range& error) {
    read.error = error.what();
  }
  return read;
}

void EncodeAgain(const RowCodec& codec, const Bytes& row) {
  const int32_t row_bytes = codec.row_bytes;
  int32_t length = 0;
  MeasureRows(codec, kScalarPath, row.data(), 1, &length, 1);
  Bytes slot(static_cast<size_t>(row_bytes + kSlackBytes)), bitmask(4), none(kSlackBytes), again(row.size());
  for (const CodePath* path : Paths()) {
    const MutableSlots out{slot.data(), bitmask.data(), none.data(), row_bytes, 0, 0, {}, 0, 0};
    EncodeRows(codec, *path, row.data(), 1, nullptr, 0, out, 1);
    FUZZ_CHECK((bitmask[0] & 1) == (length < row_bytes));
    const int64_t id = 0;
    DecodeRows(codec, *path, {slot.data(), bitmask.data(), none.data(), 1, 0, row_bytes, row_bytes, {}, 0}, nullptr,
               &id, 1, again.data(), 1);
    FUZZ_CHECK(again == row);
  }
}

void PoolAll(const RowCodec& codec, const SlotRows& rows, const int32_t* slot_of, const std::vector<int64_t>& ids,
             FuzzInput& input) {
  const PoolType type = static_cast<PoolType>(input.Between(0, 2));
  if (codec.row_bytes % PoolTypeBytes(type) != 0) return;
  const int64_t end = static_cast<int64_t>(ids.size()), middle = input.Between(0, end);
  const std::vector<int64_t> offsets = {0, middle, end};
  Bags bags{ids.data(), offsets.data(), 2, nullptr, input.Any<int8_t>(), static_cast<PoolMode>(input.Between(0, 2))};
  std::vector<float> weights(ids.size());
  for (float& weight : weights) weight = input.Any<float>();
  if (bags.mode == PoolMode::kSum) bags.weights = weights.data();
  Bytes first;
  for (const CodePath* path : Paths()) {
    Bytes out(static_cast<size_t>(2 * codec.row_bytes));
    PoolRows(codec, *path, rows, slot_of, bags, type, out.data(), 1);
    if (path == Paths().front()) first = out;
    FUZZ_CHECK(out == first);
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
  const int32_t slot_bytes = static_cast<int32_t>(input.Between(1, row_bytes + row_bytes / 4));
  const int64_t num_rows = input.Between(0, 12), num_overflow = input.Between(0, 3);
  std::vector<int64_t> ids(static_cast<size_t>(input.Between(0, 70)));
  const bool any_ids = input.Flag(), table = input.Flag();
  for (int64_t& id : ids) id = any_ids ? input.Any<int64_t>() : input.Between(0, num_rows);
  std::vector<int32_t> slot_of(static_cast<size_t>(num_rows));
  for (int32_t& slot : slot_of)
    slot = any_ids ? input.Any<int32_t>() : static_cast<int32_t>(input.Between(-1, num_rows));
  const Bytes bitmask = input.Of(BitmaskBytes(num_rows));
  const Bytes overflow = input.Of(num_overflow * row_bytes + kSlackBytes);
  const Bytes slots = input.Of(num_rows * slot_bytes + kSlackBytes);
  try {
    CheckSlotBuffers(row_bytes, num_rows, slot_bytes, static_cast<int64_t>(slots.size()),
                     static_cast<int64_t>(bitmask.size()), static_cast<int64_t>(overflow.size()));
  } catch (const ArgumentError&) {
    return 0;
  }
  const SlotRows rows{slots.data(), bitmask.data(), overflow.data(), num_rows, num_overflow, slot_bytes, 0, {}, 0};
  const int32_t* table_or_null = table ? slot_of.data() : nullptr;

  Read all;
  for (const CodePath* path : Paths()) {
    Read read = ReadRows(*codec, *path, rows, table_or_null, ids);
    if (path == Paths().front()) all = read;
    FUZZ_CHECK(read.error == all.error);
    FUZZ_CHECK(!read.error.empty() || read.rows == all.rows);
  }
  std::vector<int64_t> good;
  for (int64_t id = 0; id < num_rows; ++id) {
    Read one;
    for (const CodePath* path : Paths()) {
      Read read = ReadRows(*codec, *path, rows, table_or_null, {id});
      if (path == Paths().front()) one = read;
      FUZZ_CHECK(read.error == one.error);
      FUZZ_CHECK(!read.error.empty() || read.rows == one.rows);
    }
    if (!one.error.empty()) continue;
    good.push_back(id);
    EncodeAgain(*codec, one.rows);
  }
  if (!good.empty()) PoolAll(*codec, rows, table_or_null, good, input);
  return 0;
}
