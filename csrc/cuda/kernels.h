// The CUDA backend's launchers: plain C++, raw device pointers, a stream. They enqueue and return; they return at
// once on no work, throw CudaError if a launch fails, and never synchronise or allocate.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dict_layout.h"
#include "core/ibp_layout.h"

namespace ibp {

// Codec "ibp" on the GPU: the layout and the tables of core/ibp_tables.h.
struct DeviceIbpCodec {
  IbpLayout layout;
  const uint32_t* tables_dev = nullptr;
};

// Codec "dict" on the GPU. The tables that look codes up are for encoding; gathers do without.
struct DeviceDictCodec {
  DictLayout layout;
  const uint16_t* dictionary_dev = nullptr;     // [columns or 1, 2^code_bits]
  const uint64_t* packed_dev = nullptr;         // [columns or 1]: the same, a byte a symbol; null if it does not fit
  const uint8_t* code_of_symbol_dev = nullptr;  // [columns or 1, 2^symbol_bits]
  uint16_t escape_dictionary[kPlainSymbol + 1] = {};   // 0 for kPlainSymbol
  const uint8_t* escape_code_of_symbol_dev = nullptr;  // [2^symbol_bits]
};

// Rows in the slot format of core/format.h. The pointers may be device memory or mapped host memory.
struct DeviceRows {
  const uint8_t* slots = nullptr;
  const uint32_t* bitmask = nullptr;
  const uint8_t* overflow = nullptr;
  int64_t num_rows = 0;
  int64_t num_overflow = 0;
};

// ones_dev: [8 * row_bytes], added to.
void LaunchCountOnes(const uint8_t* rows_dev, int64_t num_rows, int32_t row_bytes, int64_t* ones_dev,
                     cudaStream_t stream);

void LaunchMeasure(const DeviceIbpCodec& codec, const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
                   cudaStream_t stream);
void LaunchMeasure(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
                   cudaStream_t stream);

// Bytes of scratch that LaunchEncode wants, for the current device.
int64_t EncodeScratchBytes(const IbpLayout& layout);
int64_t EncodeScratchBytes(const DictLayout& layout);

// Where encoded rows go, in device memory.
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

// Slots, bitmask and overflow are written completely (slack excepted).
void LaunchEncode(const DeviceIbpCodec& codec, const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target,
                  uint8_t* scratch_dev, cudaStream_t stream);
void LaunchEncode(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target,
                  uint8_t* scratch_dev, cudaStream_t stream);

// int64 counters in device memory, added to by every gather.
enum GatherCounter { kHits = 0, kMisses = 1, kStoreBytes = 2, kErrorClaimed = 3, kNumGatherCounters = 4 };

// What gather tells the host about the first bad row: int64 [2] = {GatherError, the id}.
enum GatherError : int64_t { kNoError = 0, kIdOutOfRange = 1, kDamagedRow = 2 };

struct GatherRequest {
  DeviceRows store;
  DeviceRows cache;  // optional
  // Where the row of each id lies: places below cache.num_rows are slots of the cache, others are slots of the store,
  // after taking store_offset away.
  const int32_t* place_dev = nullptr;  // [store.num_rows]; null: the id itself
  int64_t store_offset = 0;
  int32_t slot_bytes = 0;
  int32_t lead_bytes = 0;         // bytes of a slot to fetch before its payload's length is known
  const void* ids_dev = nullptr;  // int32 or int64 [num_ids]
  bool ids_are_int64 = true;
  // [num_ids], from LaunchOrder: the positions of the ids in the order to fetch them in, and their places in that
  // order; null: as they come.
  const int32_t* order_dev = nullptr;
  const uint32_t* places_dev = nullptr;
  int64_t num_ids = 0;
  uint8_t* out_dev = nullptr;       // [num_ids, row_bytes]
  int64_t* counters_dev = nullptr;  // [kNumGatherCounters]
  int64_t* error = nullptr;         // [2], device memory or mapped host memory
  uint32_t* touched_dev = nullptr;  // [num_places / 32, rounded up], optional: bit p is set when place p is read
  // Of the kernel; in order, with a cache, of those that fetch misses, while the others fetch hits. 0: as many as the
  // GPU holds.
  int32_t max_blocks = 0;

  IBP_HOST_DEVICE int64_t num_places() const { return store.num_rows + store_offset; }
};

// Sorts the ids by place, bad ones last, and has the request say so. num_ids must fit an int32, num_places a uint32.
// scratch_dev: 256-byte aligned, of at least OrderScratchBytes; the request's order lies there.
int64_t OrderScratchBytes(const GatherRequest& request, int64_t num_ids);
void LaunchOrder(GatherRequest& request, uint8_t* scratch_dev, int64_t scratch_bytes, cudaStream_t stream);

// Rows with a bad id, and damaged ones, come out as zeros and are reported; nothing is read outside the rows.
void LaunchGather(const DeviceIbpCodec& codec, const GatherRequest& request, cudaStream_t stream);
void LaunchGather(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream);

// out_dev[at_dev[i]] = rows_dev[i], of row_bytes bytes each; those with an `at` outside of [0, out_rows) are left out.
void LaunchScatterRows(const uint8_t* rows_dev, int32_t row_bytes, const int64_t* at_dev, int64_t num_rows,
                       uint8_t* out_dev, int64_t out_rows, cudaStream_t stream);

// Copies uncompressed rows (device memory or mapped host memory) by id; ids are not checked. For benchmarks.
void LaunchCopyRows(const uint8_t* rows, int32_t row_bytes, const int64_t* ids_dev, const int64_t* positions_dev,
                    int64_t num_ids, uint8_t* out_dev, int32_t max_blocks, cudaStream_t stream);

}  // namespace ibp
