// What one gather reads and writes, as its kernel takes it, by value.
#pragma once

#include <cstdint>

#include "core/packed_rows.h"

namespace ibp {

// Rows in one of the layouts of core/format.h. The pointers may be device memory, a peer's, or mapped host memory.
struct DeviceRows {
  const uint8_t* slots = nullptr;
  const uint32_t* bitmask = nullptr;  // of packed rows: their directory
  const uint8_t* overflow = nullptr;
  int64_t num_rows = 0;
  int64_t num_overflow = 0;
  int64_t packed_bytes = 0;  // that all packed rows take
};

// int64 counters in device memory, added to by every gather.
enum GatherCounter { kHits = 0, kMisses = 1, kStoreBytes = 2, kErrorClaimed = 3, kNumGatherCounters = 4 };

// What gather tells the host about the first bad row: int64 [2] = {GatherError, the id}.
enum GatherError : int64_t { kNoError = 0, kIdOutOfRange = 1, kDamagedRow = 2 };

// Rows that lie together in one memory: those of the places from first_place up to the next segment's. The row at place
// p is number p - origin of `rows`.
struct RowSegment {
  DeviceRows rows;
  int64_t first_place = 0;
  int64_t origin = 0;
  bool hits = false;  // counted as hits, and fetched by many blocks; else misses, behind a link
};

// GPU memory, memory of peers, host memory.
constexpr int kMaxSegments = 3;

struct GatherRequest {
  // Sorted by first_place, the first at 0; those that are hits come before those that are misses.
  RowSegment segments[kMaxSegments];
  int32_t num_segments = 0;
  int64_t num_places = 0;              // the end of the last segment
  int64_t num_hit_places = 0;          // the end of the last one that is hits
  int64_t num_rows = 0;                // ids are below
  const int32_t* place_dev = nullptr;  // [num_rows], the place of each id's row; null: the id itself
  int32_t slot_bytes = 0;              // of packed rows: of the longest payload
  Packing packing;                     // of all segments
  int32_t lead_bytes = 0;              // bytes of a slot to fetch before its payload's length is known
  const void* ids_dev = nullptr;       // int32 or int64 [num_ids]; null: those from first_id on
  bool ids_are_int64 = true;
  int64_t first_id = 0;
  // [num_ids], from LaunchOrder: the positions of the ids in the order to fetch them in, and their places in that
  // order; null: as they come.
  const int32_t* order_dev = nullptr;
  const uint32_t* places_dev = nullptr;
  int64_t num_ids = 0;
  uint8_t* out_dev = nullptr;       // [num_ids, row_bytes]
  int64_t* counters_dev = nullptr;  // [kNumGatherCounters]
  int64_t* error = nullptr;         // [2], device memory or mapped host memory
  uint32_t* touched_dev = nullptr;  // [num_places / 32, rounded up], optional: bit p is set when place p is read
  // Of the kernel; in order, with hits, of those that fetch misses, while the others fetch hits. 0: as many as the GPU
  // holds.
  int32_t max_blocks = 0;
};

}  // namespace ibp
