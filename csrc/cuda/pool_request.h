// What pooling reads and writes, as its kernels take it. core/pooling.h says what is computed.
#pragma once

#include <cstdint>

#include "core/pooling.h"
#include "cuda/device_codecs.h"
#include "cuda/gather_request.h"

namespace ibp {

// Rows that have been brought to GPU memory for the lookups to come. Misses of all features are numbered, see
// PoolFeature; `bits` has one for each, set if the row is here: then it is number begin + ranks[word] + how many bits
// of the word before are set. Rows from number `capacity` on did not fit.
struct StagedRows {
  const uint32_t* bits_dev = nullptr;
  const uint32_t* ranks_dev = nullptr;
  const int64_t* begin_dev = nullptr;  // [1]
  const uint8_t* slots_dev = nullptr;  // a multiple of kSectorBytes
  int64_t capacity = 0;
  int64_t stride = 0;  // from slot to slot; a slot lies as many bytes behind it as it does behind a kLoadBytes boundary
};

constexpr int kMaxStageParts = 4;

// One column of the output: bags of rows of one table. In device memory, an array of them for each launch.
struct PoolFeature {
  DeviceDictCodec codec;
  GatherRequest rows;      // but for what is this call's: ids, output
  int64_t first_miss = 0;  // place p, a miss, has the number p - num_hit_places + first_miss; a multiple of 32
  int64_t padding_id = -1;
  int64_t out_column_bytes = 0;
  int32_t key = 0;        // number of its first bag / num_bags
  int32_t piece_set = 0;  // how many features before have the same key, and so pieces of the same numbers
  int32_t window_bytes = 0;
  PoolMode mode = PoolMode::kSum;
};

// One call.
struct PoolRequest {
  const void* ids_dev = nullptr;  // int32 or int64 [num_ids], of all features
  bool ids_are_int64 = true;
  int64_t num_ids = 0;
  // Where each bag starts, int32 or int64 [num_offsets], feature by feature; behind their end all are num_ids. Null:
  // all bags have bag_ids ids.
  const void* offsets_dev = nullptr;
  bool offsets_are_int64 = true;
  int64_t num_offsets = 0;
  int64_t bag_ids = 0;
  int64_t num_bags = 0;                  // of each feature
  int64_t first_bag = 0, part_bags = 0;  // which of each feature this launch is about
  const float* weights_dev = nullptr;    // [num_ids], or null
  uint8_t* out_dev = nullptr;            // [num_bags, out_stride_bytes]
  int64_t out_stride_bytes = 0;
  // Of bags of several pieces. The piece that starts at id i is number i / kPieceIds, of PoolFeature::piece_set: no two
  // have the same.
  float* piece_sums_dev = nullptr;      // [sets, PiecesOf(num_ids), piece_width]
  int32_t* piece_counts_dev = nullptr;  // [sets, PiecesOf(num_ids)]
  int32_t piece_width = 0;
  StagedRows staged[kMaxStageParts];  // a row is in the first that has its bit
  int32_t num_staged = 0;
};

constexpr int64_t PiecesOf(int64_t num_ids) { return num_ids / kPieceIds + 1; }

}  // namespace ibp
