// Rows from their slots, a block at a time: what all that reads many rows by id goes through.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "core/check.h"
#include "core/format.h"
#include "cpu/rows.h"

namespace ibp {

inline bool BitmaskBit(const uint8_t* bitmask, int64_t row) { return (bitmask[row >> 3] >> (row & 7)) & 1; }

// Read once: another thread may be writing there.
template <typename T>
T LoadOnce(const T* address) {
  return *const_cast<const volatile T*>(address);
}

inline int64_t SlotOf(const int32_t* slot_of, int64_t id, int64_t num_rows) {
  // The ids were checked, for a message with the position; this is for those that changed since then.
  if (id < 0 || id >= num_rows) {
    Throw<std::out_of_range>("ids: want 0 <= id < ", num_rows, ", got ", id, ", written while the rows were gathered");
  }
  if (slot_of == nullptr) return id;
  const int64_t slot = LoadOnce(slot_of + id);
  if (slot < 0 || slot >= num_rows) {
    Throw<FormatError>("row ", id, ": want a slot of 0 to ", num_rows - 1, ", got ", slot);
  }
  return slot;
}

// Copies of some slots, from which they are decoded. A copying loop keeps many cache misses in flight, even more so if
// it prefetches: 10 to 25 % faster with the second-level cache as the target, half of that with the first-level one. A
// decoding loop that waits for its own, or prefetches them, took twice as long for rows from memory.
class SlotBlock {
 public:
  static constexpr int64_t kBlockBytes = 16 << 10;  // stays in the first-level cache
  // Where slots of ordinary lengths are copied to: nothing is allocated then. Not a part of the block, which compilers
  // keep in registers.
  using Room = uint8_t[kBlockBytes];

  SlotBlock(const SlotRows& rows, Room& room)
      : rows_(rows),
        stride_((int64_t{MostBytes(rows)} + kSlackBytes + 63) / 64 * 64),
        capacity_(std::clamp<int64_t>(kBlockBytes / stride_, 1, kMaxRows)),
        rows_ahead_(std::max<int64_t>(kBytesAhead / MeanBytes(rows), 1)),
        more_bytes_(static_cast<size_t>(capacity_ * stride_ <= kBlockBytes ? 0 : capacity_ * stride_)),
        bytes_(more_bytes_.empty() ? room : more_bytes_.data()) {}
  SlotBlock(const SlotBlock&) = delete;
  SlotBlock& operator=(const SlotBlock&) = delete;

  static constexpr int64_t kMaxRows = 64;

  int64_t capacity() const { return capacity_; }
  // Copies the slots of `count` ids; what follows up to `remaining` is going to be asked for next. Writes the ids, each
  // read once, to block_ids. slot_of: as for DecodeRows.
  void FetchAll(const int32_t* slot_of, const int64_t* ids, int64_t count, int64_t remaining, int64_t* block_ids) {
    for (int64_t i = 0; i < count; ++i) {
      if (const int64_t soon = i + rows_ahead_; soon < remaining) {
        Prefetch(SlotOf(slot_of, LoadOnce(ids + soon), rows_.num_rows));
        if (rows_.packing.is_packed() && soon + rows_ahead_ < remaining) {
          const int64_t later = SlotOf(slot_of, LoadOnce(ids + soon + rows_ahead_), rows_.num_rows);
          __builtin_prefetch(rows_.directory() + later / kRowsPerRecord, 0, 3);
        }
      }
      block_ids[i] = LoadOnce(ids + i);
      const int64_t slot = SlotOf(slot_of, block_ids[i], rows_.num_rows);
      if (rows_.packing.is_packed()) {
        FetchPacked(i, slot, block_ids[i]);
      } else {
        Fetch(i, slot);
      }
    }
  }
  // Of the i-th copied slot, the row of this id, to `row`. Throws FormatError.
  void Decode(const RowCodec& codec, const RowOps& ops, int64_t i, int64_t id, uint8_t* row) const {
    const uint8_t* from = bytes_ + i * stride_;
    const int32_t row_bytes = codec.row_bytes;
    const int32_t limit_bytes = std::min(limits_[i], row_bytes - 1);  // a longer payload would be a raw row
    if (is_payload_[i]) {
      if (!ops.decode(codec, from, limit_bytes, row)) {
        Throw<FormatError>("row ", id, ": want a payload of at most ", limit_bytes, " bytes, got a longer one");
      }
    } else if (rows_.slot_bytes >= row_bytes || rows_.packing.is_packed()) {
      std::memcpy(row, from, static_cast<size_t>(row_bytes));
    } else {
      uint32_t index;
      std::memcpy(&index, from, kOverflowIndexBytes);
      if (index >= rows_.num_overflow) {
        Throw<FormatError>("row ", id, ": want an overflow index below ", rows_.num_overflow, ", got ", index);
      }
      std::memcpy(row, rows_.overflow + static_cast<int64_t>(index) * row_bytes, static_cast<size_t>(row_bytes));
    }
  }

 private:
  void Fetch(int64_t i, int64_t slot) {
    is_payload_[i] = BitmaskBit(rows_.bitmask, slot);
    limits_[i] = rows_.slot_bytes;
    std::memcpy(bytes_ + i * stride_, rows_.slots + slot * rows_.slot_bytes, static_cast<size_t>(rows_.slot_bytes));
  }
  // id: for the message.
  void FetchPacked(int64_t i, int64_t slot, int64_t id) {
    const PackedPlace place = PlaceOfRow(rows_.directory(), slot, rows_.packing, rows_.row_bytes);
    if (!IsPlace(place, rows_.packing, rows_.slot_bytes, rows_.packed_bytes)) {
      Throw<FormatError>("row ", id, ": want a place of at most ", rows_.slot_bytes, " bytes in ", rows_.packed_bytes,
                         ", got ", place.bytes, " from ", place.start, " on");
    }
    is_payload_[i] = place.is_payload;
    limits_[i] = static_cast<int32_t>(place.bytes);
    std::memcpy(bytes_ + i * stride_, rows_.slots + place.start, static_cast<size_t>(place.bytes));
  }
  // Starts reading a slot that is to be fetched soon.
  void Prefetch(int64_t slot) const {
    int64_t start = slot * rows_.slot_bytes, count = rows_.slot_bytes;
    if (rows_.packing.is_packed()) {
      const PackedPlace place = PlaceOfRow(rows_.directory(), slot, rows_.packing, rows_.row_bytes);
      start = std::min(place.start, rows_.packed_bytes);
      count = place.bytes;
    }
    const uint8_t* bytes = rows_.slots + start;
    for (int64_t at = 0; at < count; at += 64) __builtin_prefetch(bytes + at, 0, 2);
  }
  // Of a row that is copied here.
  static int64_t MostBytes(const SlotRows& rows) {
    return rows.packing.is_packed() ? rows.packing.RawBytes(rows.row_bytes) : rows.slot_bytes;
  }
  static int64_t MeanBytes(const SlotRows& rows) {
    if (!rows.packing.is_packed()) return rows.slot_bytes;
    return std::max<int64_t>(rows.packed_bytes / std::max<int64_t>(rows.num_rows, 1), 1);
  }

  static constexpr int64_t kBytesAhead = 32 << 10;  // to prefetch

  const SlotRows& rows_;
  const int64_t stride_, capacity_, rows_ahead_;
  std::vector<uint8_t> more_bytes_;  // of one slot that is longer
  uint8_t* const bytes_;
  bool is_payload_[kMaxRows];
  int32_t limits_[kMaxRows];  // of their payloads
};

}  // namespace ibp
