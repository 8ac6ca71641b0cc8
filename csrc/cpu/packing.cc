#include "cpu/packing.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/check.h"
#include "cpu/parallel.h"

namespace ibp {
namespace {

// The place of a row, which lies in the buffer.
PackedPlace CheckedPlace(const SlotRows& rows, int64_t slot) {
  const PackedPlace place = PlaceOfRow(rows.directory(), slot, rows.packing, rows.row_bytes);
  if (!IsPlace(place, rows.packing, rows.slot_bytes, rows.packed_bytes)) {
    Throw<FormatError>("slot ", slot, ": want a place of at most ", rows.slot_bytes, " bytes in ", rows.packed_bytes,
                       ", got ", place.bytes, " from ", place.start, " on");
  }
  return place;
}

}  // namespace

PackedLength LengthOf(int64_t payload_bytes, int32_t row_bytes, int32_t slot_bytes, const Packing& packing) {
  const int64_t beyond = std::max<int64_t>(payload_bytes - packing.least_bytes, 0);
  const int64_t bytes = packing.least_bytes + CeilDiv(beyond, packing.unit_bytes) * packing.unit_bytes;
  if (bytes >= row_bytes || bytes > slot_bytes) return {packing.RawBytes(row_bytes), false};
  return {bytes, true};
}

PackingChoice BestPacking(const int64_t* rows_of_length, int32_t row_bytes, int32_t least_unit) {
  // The lengths that occur: what follows is done for each unit.
  std::vector<std::pair<int32_t, int64_t>> lengths;
  int64_t num_rows = 0, fewest = 0;
  for (int32_t length = 0; length <= row_bytes; ++length) {
    if (rows_of_length[length] == 0) continue;
    lengths.emplace_back(length, rows_of_length[length]);
    num_rows += rows_of_length[length];
    fewest += rows_of_length[length] * length;
  }
  PackingChoice best;
  best.slot_bytes = 1;
  best.packing = {least_unit, 0};
  best.total_bytes = num_rows * best.packing.RawBytes(row_bytes);
  // The longest payload: from the longest one down, as long as the rows that become raw cost no more than a thousandth.
  int32_t longest = 0;
  int64_t cost = 0;
  bool found = false;
  for (auto at = lengths.rbegin(); at != lengths.rend() && !found; ++at) {
    if (at->first >= row_bytes) continue;
    cost += at->second * (row_bytes - at->first);
    if (1000 * cost <= fewest) continue;
    longest = at->first;
    found = true;
  }
  if (!found) return best;
  const int32_t shortest = lengths.front().first;
  for (int64_t unit = least_unit; unit <= row_bytes; unit *= 2) {
    // The least length is a multiple of the unit from which the longest one is within reach.
    const int64_t reach = kMostUnits * unit;
    const int64_t least = std::max<int64_t>(shortest / unit, CeilDiv(longest - reach, unit)) * unit;
    PackingChoice choice;
    choice.packing = {static_cast<int32_t>(unit), static_cast<int32_t>(least)};
    choice.slot_bytes = static_cast<int32_t>(
        std::min<int64_t>(least + CeilDiv(longest - least, unit) * unit, std::max(row_bytes - 1, 1)));
    for (const auto& [length, count] : lengths) {
      choice.total_bytes += count * LengthOf(length, row_bytes, choice.slot_bytes, choice.packing).bytes;
    }
    if (choice.total_bytes < best.total_bytes) best = choice;
    if (reach > longest) break;
  }
  return best;
}

int64_t LayOutRows(const int32_t* payload_bytes, int64_t num_rows, int32_t row_bytes, int32_t slot_bytes,
                   const Packing& packing, int64_t first_start, PackedRecord* directory) {
  int64_t end = first_start;
  for (int64_t first = 0; first < num_rows; first += kRowsPerRecord) {
    PackedRecord& record = directory[first / kRowsPerRecord];
    record = {};
    if (end >= int64_t{1} << kRecordStartBits) {
      Throw<ArgumentError>("packed rows: want less than ", int64_t{1} << kRecordStartBits, " bytes, got ", end);
    }
    record.start_and_kinds = static_cast<uint64_t>(end);
    for (int64_t row = first; row < std::min(num_rows, first + kRowsPerRecord); ++row) {
      const PackedLength length = LengthOf(payload_bytes[row], row_bytes, slot_bytes, packing);
      end += length.bytes;
      if (!length.is_payload) continue;
      const int64_t units = (length.bytes - packing.least_bytes) / packing.unit_bytes;
      if (units > kMostUnits) {
        Throw<ArgumentError>("slot_bytes: want at most ", packing.least_bytes + kMostUnits * packing.unit_bytes,
                             ", got ", slot_bytes);
      }
      record.start_and_kinds |= uint64_t{1} << (kRecordStartBits + row - first);
      record.units[row - first] = static_cast<uint8_t>(units);
    }
  }
  return end;
}

void FindPackedRows(const SlotRows& rows, const int64_t* slots, int64_t n, int64_t* starts, int32_t* payload_bytes) {
  for (int64_t i = 0; i < n; ++i) {
    const PackedPlace place = CheckedPlace(rows, slots[i]);
    starts[i] = place.start;
    payload_bytes[i] = place.is_payload ? static_cast<int32_t>(place.bytes) : rows.row_bytes;
  }
}

void CopyPackedRows(const SlotRows& rows, const int64_t* slots, int64_t n, const MutableSlots& out, int threads) {
  const auto* directory = reinterpret_cast<const PackedRecord*>(out.bitmask);
  ParallelFor(n, 1, rows.slot_bytes, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const PackedPlace from = CheckedPlace(rows, slots[i]);
      const PackedPlace to = PlaceOfRow(directory, i, out.packing, rows.row_bytes);
      const int64_t start = to.start - out.first_start;
      if (to.bytes != from.bytes || start < 0 || start + to.bytes > out.packed_bytes) {
        Throw<ArgumentError>("directory: want ", from.bytes, " bytes for row ", i, ", got ", to.bytes);
      }
      std::memcpy(out.slots + start, rows.slots + from.start, static_cast<size_t>(from.bytes));
    }
  });
}

}  // namespace ibp
