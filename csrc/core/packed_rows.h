// Rows end to end, in bytes of any number each: where each starts. One definition for host and device; core/format.h
// has the place of it among the layouts.
//
// The directory is an array of records, one for kRowsPerRecord rows: a sector of a GPU's memory, so that one access
// finds a row.
//
//   record   [uint64: bits 0 to 39: where its first row starts, in bytes; bit 40 + i: row i is a payload, not a raw
//   row]
//            [a byte for each row: of a payload, its length beyond least_bytes in units; of a raw row, 0]
//
// A payload takes least_bytes + units * unit_bytes, unused bytes being 0; a raw row takes row_bytes, rounded up to a
// unit. least_bytes is a multiple of the unit, so all rows start at one. Rows of the last record that there are not
// have zeros. No payload takes more than slot_bytes. The rows are followed by slot_bytes + kSlackBytes bytes of 0, so
// that decoders may read as much from any start.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/bits.h"
#include "core/check.h"
#include "core/format.h"

namespace ibp {

constexpr int32_t kRowsPerRecord = 24;
constexpr int32_t kRecordStartBits = 40;
constexpr int32_t kMostUnits = 255;

struct alignas(16) PackedRecord {
  uint64_t start_and_kinds;
  uint8_t units[kRowsPerRecord];
};
static_assert(sizeof(PackedRecord) == kSectorBytes && kRecordStartBits + kRowsPerRecord == 64);

// unit_bytes: a power of two. 0: rows lie in slots.
struct Packing {
  int32_t unit_bytes = 0;
  int32_t least_bytes = 0;

  IBP_HOST_DEVICE constexpr bool is_packed() const { return unit_bytes != 0; }
  IBP_HOST_DEVICE constexpr int64_t RawBytes(int32_t row_bytes) const {
    return (int64_t{row_bytes} + unit_bytes - 1) & ~int64_t{unit_bytes - 1};
  }
};

constexpr int64_t DirectoryBytes(int64_t num_rows) { return CeilDiv(num_rows, kRowsPerRecord) * kSectorBytes; }

struct PackedPlace {
  int64_t start;
  int64_t bytes;  // that it takes
  bool is_payload;
};

// x plus the four bytes of y.
IBP_HOST_DEVICE uint32_t AddBytes(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__)
  return __dp4a(y, 0x01010101u, x);
#else
  const uint32_t pairs = (y & 0x00ff00ffu) + ((y >> 8) & 0x00ff00ffu);
  return x + (pairs & 0xffffu) + (pairs >> 16);
#endif
}

// A record in registers, the units four to a word.
struct LoadedRecord {
  uint64_t start_and_kinds;
  uint32_t units[kRowsPerRecord / 4];

  IBP_HOST_DEVICE explicit LoadedRecord(const PackedRecord* record) {
#if defined(__CUDA_ARCH__)
    // All lanes read records of their own, and a load of 16 bytes takes as long as one of 4.
    const uint4* halves = reinterpret_cast<const uint4*>(record);
    const uint4 head = __ldg(halves), tail = __ldg(halves + 1);
    start_and_kinds = head.x | uint64_t{head.y} << 32;
    units[0] = head.z, units[1] = head.w;
    units[2] = tail.x, units[3] = tail.y, units[4] = tail.z, units[5] = tail.w;
#else
    start_and_kinds = record->start_and_kinds;
    std::memcpy(units, record->units, sizeof(units));
#endif
  }
};

IBP_HOST_DEVICE PackedPlace PlaceOfRow(const PackedRecord* directory, int64_t row, const Packing& packing,
                                       int32_t row_bytes) {
  const LoadedRecord record(directory + row / kRowsPerRecord);
  const int index = static_cast<int>(row % kRowsPerRecord);
  const uint32_t kinds = static_cast<uint32_t>(record.start_and_kinds >> kRecordStartBits);
  const uint32_t before = kinds & LowMask<uint32_t>(index);
#if defined(__CUDA_ARCH__)
  const int payloads_before = __popc(before);
#else
  const int payloads_before = __builtin_popcount(before);
#endif
  uint32_t units_before = 0, own = 0;  // own: the word that has the row's
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int w = 0; w < kRowsPerRecord / 4; ++w) {
    const int rows = index - 4 * w;
    units_before = AddBytes(units_before, rows > 0 ? record.units[w] & LowMask<uint32_t>(8 * rows) : 0);
    if (rows >= 0) own = record.units[w];
  }
  const uint32_t units = (own >> (index % 4 * 8)) & 0xff;
  PackedPlace place;
  const int64_t raw_bytes = packing.RawBytes(row_bytes);
  place.is_payload = (kinds >> index) & 1;
  place.bytes = place.is_payload ? packing.least_bytes + int64_t{units} * packing.unit_bytes : raw_bytes;
  place.start = static_cast<int64_t>(record.start_and_kinds & LowMask<uint64_t>(kRecordStartBits)) +
                int64_t{payloads_before} * packing.least_bytes + int64_t{units_before} * packing.unit_bytes +
                (index - payloads_before) * raw_bytes;
  return place;
}

// Whether a row lies where the directory has it: what is damaged may be anywhere. packed_bytes: that all rows take.
IBP_HOST_DEVICE bool IsPlace(const PackedPlace& place, const Packing& packing, int32_t slot_bytes,
                             int64_t packed_bytes) {
  return place.start + place.bytes <= packed_bytes && (place.start & (packing.unit_bytes - 1)) == 0 &&
         (!place.is_payload || place.bytes <= slot_bytes);
}

// The buffers of num_rows packed rows; lengths in bytes. Returns how many bytes the rows take.
inline int64_t CheckPackedBuffers(int64_t row_bytes, int64_t num_rows, int64_t slot_bytes, const Packing& packing,
                                  int64_t rows_length, const void* directory, int64_t directory_length) {
  const int32_t unit = packing.unit_bytes;
  if (unit < 1 || (unit & (unit - 1)) != 0 || packing.least_bytes < 0 || packing.least_bytes % unit != 0) {
    Throw<ArgumentError>("packing: want a unit that is a power of two, and a multiple of it, got ", unit, " and ",
                         packing.least_bytes);
  }
  if (slot_bytes < 1 || slot_bytes > row_bytes || packing.least_bytes > slot_bytes) {
    Throw<ArgumentError>("slot_bytes: want ", packing.least_bytes, " to ", row_bytes, ", got ", slot_bytes);
  }
  if (num_rows < 0 || num_rows > (int64_t{1} << kRecordStartBits)) {
    Throw<ArgumentError>("num_rows: want 0 to ", int64_t{1} << kRecordStartBits, ", got ", num_rows);
  }
  CheckAtLeast("rows bytes, slack included", slot_bytes + kSlackBytes, rows_length);
  CheckAtLeast("directory bytes", DirectoryBytes(num_rows), directory_length);
  if (reinterpret_cast<uintptr_t>(directory) % alignof(PackedRecord) != 0) {
    Throw<ArgumentError>("directory: want it at a multiple of ", alignof(PackedRecord), " bytes");
  }
  return rows_length - slot_bytes - kSlackBytes;
}

}  // namespace ibp
