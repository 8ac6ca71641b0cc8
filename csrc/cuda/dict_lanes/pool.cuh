// Pooling of codec "dict": decodes rows as kernel.cuh does, and adds them in registers in the place of writing them.
//
//   launch    features, one after the other; each is dealt to blocks by how many ids and bags it has
//   block     whole bags of one feature, at most kMaxBlockBags. Their ids follow one another.
//   stream    the ids of a group of lanes: whole pieces (core/pooling.h). A block has kStreams of them.
//   batch     the up to kLanes ids of each stream that a warp looks up at once, one a lane
//
// A tile is as in shape.cuh: row r of group g is one of g's stream. A stream's rows are added in their order, so a
// group adds each piece as core/pooling.h says. A bag of one piece is written when the stream passes its end. The sums
// of other pieces wait in global memory until the whole block is done with its streams.
//
// Payloads are fetched whole: lead_bytes is the slot. So no row has to be decoded again behind others.
#pragma once

#include <optional>

#include "cuda/dict_lanes/choose.cuh"
#include "cuda/dict_lanes/pool_units.h"
#include "cuda/pool_bags.cuh"

namespace ibp {

// What to do with an entry of the list; in RowEntry::lane.
enum PoolKind : uint8_t { kLeaveOut, kAddPayload, kAddRaw, kAddZeros };

// The bags of one block.
struct BlockBags {
  int32_t feature;
  int32_t num_bags;
  int64_t first_bag;  // of the feature
  int64_t first_id;
};

// Units of a block: at least `least`, and enough for a bag of the feature's mean length for each stream.
__device__ __forceinline__ int32_t UnitsOfBlock(int64_t ids, int64_t num_bags, int num_streams, int32_t least) {
  const int64_t bag_units = CeilDiv(ids, max(int64_t{1}, num_bags)) + kBagUnits;
  return static_cast<int32_t>(max(int64_t{least}, min(num_streams * bag_units, int64_t{kMaxBlockUnits})));
}

// Finds them: unit u of a feature is the u-th of its ids, kBagUnits more for each bag; a bag belongs to the block of
// its first one. Called by the first two warps of a block, which write a part each.
__device__ inline void FindBlockBags(const PoolFeature* features, int32_t num_features, const PoolRequest& pool,
                                     int num_streams, int32_t least_units, BlockBags& bags, int64_t& end_bag) {
  const int lane = threadIdx.x % kWarpSize;
  int64_t block = blockIdx.x;  // of those of the features from here on
  for (int32_t base = 0; base < num_features; base += kWarpSize) {
    const int32_t mine = base + lane;
    int32_t blocks = 0, units = 1;
    if (mine < num_features) {
      const int32_t key = features[mine].key;
      const int64_t ids = max(int64_t{0}, EndId(pool, key) - FirstId(pool, key));
      units = UnitsOfBlock(ids, pool.part_bags, num_streams, least_units);
      blocks = static_cast<int32_t>(CeilDiv(ids + kBagUnits * pool.part_bags, units));
    }
    const int32_t up_to = WarpInclusiveSum(blocks, lane);
    const unsigned behind = __ballot_sync(kWholeWarp, up_to > block);
    if (!behind) {
      block -= __shfl_sync(kWholeWarp, up_to, kWarpSize - 1);
      continue;
    }
    const int of = __ffs(behind) - 1;
    block -= __shfl_sync(kWholeWarp, up_to - blocks, of);
    const int32_t feature = base + of;
    const int64_t first_bag = features[feature].key * pool.num_bags + pool.first_bag;
    const int64_t first_id = BagStart(pool, first_bag);
    const bool find_end = threadIdx.x >= kWarpSize;
    const int64_t bound = (block + find_end) * __shfl_sync(kWholeWarp, units, of);
    const int64_t bag = CountBelow(
        pool.part_bags, [&](int64_t i) { return BagStart(pool, first_bag + i) - first_id + kBagUnits * i < bound; });
    if (lane == 0 && find_end) end_bag = pool.first_bag + bag;
    if (lane == 0 && !find_end) {
      bags.feature = feature;
      bags.first_bag = pool.first_bag + bag;
      bags.first_id = BagStart(pool, first_bag + bag);
    }
    return;
  }
  if (lane == 0) {  // a block too many
    if (threadIdx.x >= kWarpSize) end_bag = 0;
    if (threadIdx.x < kWarpSize) bags = {0, 0, 0, 0};
  }
}

// Which bag of the block id `at` is of, which is below the last end. Ids count from the block's first.
__device__ __forceinline__ int32_t FindBag(const int32_t* bag_ends, int32_t num_bags, int32_t at) {
  int32_t low = 0, count = num_bags - 1;  // the answer is in [low, low + count]
  while (count > 0) {
    const int32_t half = count / 2;
    if (bag_ends[low + half] <= at) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// The ids of a bag of the block.
struct BagIds {
  int32_t begin, count;

  __device__ __forceinline__ BagIds(const int32_t* bag_ends, int32_t bag)
      : begin(bag ? bag_ends[bag - 1] : 0), count(bag_ends[bag] - begin) {}
  // Of the piece that id `at` is of.
  __device__ __forceinline__ int32_t PieceAt(int32_t at) const {
    return min((at - begin) / static_cast<int32_t>(kPieceIds), static_cast<int32_t>(NumPieces(count)) - 1);
  }
  __device__ __forceinline__ int32_t PieceBegin(int32_t piece) const {
    return begin + piece * static_cast<int32_t>(kPieceIds);
  }
  __device__ __forceinline__ int32_t PieceEnd(int32_t piece) const {
    return begin + static_cast<int32_t>(ibp::PieceEnd(count, piece));
  }
};

template <typename Float>
constexpr PoolType kPoolTypeOf = sizeof(typename Float::Word) == 4 ? PoolType::kFloat32
                                 : Float::kLowBits == 8            ? PoolType::kBfloat16
                                                                   : PoolType::kFloat16;

// What a group has pooled of a piece, each lane its own columns.
template <typename Lanes>
struct PooledColumns {
  static constexpr PoolType kType = kPoolTypeOf<typename Lanes::Float>;
  float values[Lanes::kSteps][Lanes::kValues];
  int32_t count;

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int step = 0; step < Lanes::kSteps; ++step) {
#pragma unroll
      for (int v = 0; v < Lanes::kValues; ++v) values[step][v] = 0.0f;
    }
    count = 0;
  }
  // The 16 bytes of a step of the next row; after the last of them ++count.
  __device__ __forceinline__ void Add(int step, const uint4& x, bool is_max, bool weighted, float weight) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    float next[Lanes::kValues];
#pragma unroll
    for (int v = 0; v < Lanes::kValues; ++v) {
      constexpr int kPerWord = Lanes::kValues / 4;
      next[v] = FloatOfBits<kType>(kPerWord == 1 ? words[v] : (words[v / kPerWord] >> (v % kPerWord * 16)) & 0xffffu);
    }
    // A branch for all of them: the same for all rows.
    if (is_max) {
#pragma unroll
      for (int v = 0; v < Lanes::kValues; ++v) {
        values[step][v] = PoolNext(PoolMode::kMax, count == 0, values[step][v], next[v]);
      }
      return;
    }
    if (weighted) {
#pragma unroll
      for (int v = 0; v < Lanes::kValues; ++v) next[v] = __fmul_rn(weight, next[v]);
    }
#pragma unroll
    for (int v = 0; v < Lanes::kValues; ++v) values[step][v] = __fadd_rn(values[step][v], next[v]);
  }
};

// Where a lane's streams write what they have pooled.
template <typename Lanes>
struct PoolOutput {
  static constexpr PoolType kType = PooledColumns<Lanes>::kType;
  const PoolRequest& pool;
  const PoolFeature& feature;
  const BlockBags& bags;
  const int32_t num_values;
  const bool aligned;  // rows of the output start at multiples of 16 bytes

  __device__ __forceinline__ PoolOutput(const PoolRequest& pool_, const PoolFeature& feature_, const BlockBags& bags_,
                                        int32_t num_values_)
      : pool(pool_),
        feature(feature_),
        bags(bags_),
        num_values(num_values_),
        aligned((reinterpret_cast<uintptr_t>(pool.out_dev) | pool.out_stride_bytes | feature.out_column_bytes) % 16 ==
                0) {}
  __device__ __forceinline__ uint8_t* Bag(int32_t bag) const {
    return pool.out_dev + (bags.first_bag + bag) * pool.out_stride_bytes + feature.out_column_bytes;
  }
  __device__ __forceinline__ int64_t PieceNumber(int32_t begin) const {
    return feature.piece_set * (pool.num_ids / kPieceIds + 1) + (bags.first_id + begin) / kPieceIds;
  }

  // Stores the piece of this bag whose last id is `last`. Called by the lanes of a group.
  __device__ __forceinline__ void Store(const int32_t* bag_ends, int32_t bag, int32_t last,
                                        const PooledColumns<Lanes>& pooled, int group_lane) const {
    const BagIds ids(bag_ends, bag);
    const bool is_bag = NumPieces(ids.count) == 1;
    const int64_t number = PieceNumber(ids.PieceBegin(ids.PieceAt(last)));
    float* const sums = pool.piece_sums_dev + number * pool.piece_width;
    uint8_t* const out = Bag(bag);
    const PoolMode mode = feature.mode;
#pragma unroll
    for (int step = 0; step < Lanes::kSteps; ++step) {
      const int32_t column = step * Lanes::kStepValues + group_lane * Lanes::kValues;
      float values[Lanes::kValues];
#pragma unroll
      for (int v = 0; v < Lanes::kValues; ++v) {
        values[v] = is_bag ? PoolResult(mode, pooled.values[step][v], pooled.count) : pooled.values[step][v];
      }
      if (is_bag && aligned && column + Lanes::kValues <= num_values) {
        StoreUnit(out + column * Lanes::kValueBytes, values);
      } else {
#pragma unroll
        for (int v = 0; v < Lanes::kValues; ++v) {
          if (column + v >= num_values) break;
          if (is_bag) {
            StorePooled<kType>(out, column + v, values[v]);
          } else {
            sums[column + v] = values[v];
          }
        }
      }
    }
    if (!is_bag && group_lane == 0) pool.piece_counts_dev[number] = pooled.count;
  }
  __device__ __forceinline__ static void StoreUnit(uint8_t* out, const float (&values)[Lanes::kValues]) {
    uint32_t words[4] = {};
    constexpr int kPerWord = Lanes::kValues / 4;
#pragma unroll
    for (int v = 0; v < Lanes::kValues; ++v) {
      words[v / kPerWord] |= RoundPooled<kType>(values[v]) << (v % kPerWord * 16);
    }
    *reinterpret_cast<uint4*>(out) = make_uint4(words[0], words[1], words[2], words[3]);
  }

  // Bags without ids, and those of several pieces, whose sums are all there. Called by whole warps.
  __device__ inline void StoreOthers(const int32_t* bag_ends, int warp_in_block, int lane) const {
    for (int32_t base = warp_in_block * kWarpSize; base < bags.num_bags; base += kThreads) {
      const int32_t mine = base + lane;
      int32_t begin = 0, ids = 1;
      if (mine < bags.num_bags) {
        begin = mine ? bag_ends[mine - 1] : 0;
        ids = bag_ends[mine] - begin;
      }
      for (unsigned rest = __ballot_sync(kWholeWarp, ids <= 0 || NumPieces(ids) > 1); rest; rest &= rest - 1) {
        const int of = __ffs(rest) - 1;
        StoreOther(base + of, __shfl_sync(kWholeWarp, begin, of), __shfl_sync(kWholeWarp, ids, of), lane);
      }
    }
  }
  __device__ inline void StoreOther(int32_t bag, int32_t begin, int32_t ids, int lane) const {
    const int64_t pieces = ids <= 0 ? 0 : NumPieces(ids), first = PieceNumber(begin);
    for (int32_t column = lane; column < num_values; column += kWarpSize) {
      float whole = 0.0f;
      int32_t count = 0;
      for (int64_t p = 0; p < pieces; ++p) {
        // Pieces start kPieceIds apart: their numbers follow one another.
        const int32_t of_piece = pool.piece_counts_dev[first + p];
        if (of_piece == 0) continue;
        whole = PoolNext(feature.mode, count == 0, whole, pool.piece_sums_dev[(first + p) * pool.piece_width + column]);
        count += of_piece;
      }
      StorePooled<kType>(Bag(bag), column, PoolResult(feature.mode, whole, count));
    }
  }
};

// What a block has counted, in shared memory.
struct BlockCounts {
  uint32_t hits, misses;  // a call has fewer ids
  unsigned long long store_bytes;

  // Called by whole warps, with whether each lane has found a row there.
  __device__ __forceinline__ void AddRows(bool hit, bool miss, int lane) {
    const unsigned with_hit = __ballot_sync(kWholeWarp, hit), with_miss = __ballot_sync(kWholeWarp, miss);
    if (lane == 0 && with_hit) atomicAdd(&hits, static_cast<uint32_t>(__popc(with_hit)));
    if (lane == 0 && with_miss) atomicAdd(&misses, static_cast<uint32_t>(__popc(with_miss)));
  }
  __device__ __forceinline__ void AddBytes(int32_t bytes) {
    atomicAdd(&store_bytes, static_cast<unsigned long long>(bytes));
  }
};

// Where the slot of a miss is now, if it is staged; else null.
__device__ __forceinline__ const uint8_t* StagedSlot(const PoolRequest& pool, const PoolFeature& feature, int64_t place,
                                                     const uint8_t* slot) {
  const int64_t miss = place - feature.rows.num_hit_places + feature.first_miss;
  const uint32_t bit = 1u << (miss % 32);
  for (int part = 0; part < pool.num_staged; ++part) {
    const StagedRows& staged = pool.staged[part];
    const uint32_t word = __ldg(staged.bits_dev + miss / 32), rank = __ldg(staged.ranks_dev + miss / 32);
    if (!(word & bit)) continue;
    const int64_t number = *staged.begin_dev + rank + __popc(word & (bit - 1));
    if (number >= staged.capacity) return nullptr;
    return staged.slots_dev + number * staged.stride + reinterpret_cast<uintptr_t>(slot) % kLoadBytes;
  }
  return nullptr;
}

// Looks up the id at `position` of the call.
template <typename Lanes>
__device__ __forceinline__ RowEntry FindRow(const PoolRequest& pool, const PoolFeature& feature, int32_t row_bytes,
                                            int64_t position, BlockCounts& counts, bool& hit, bool& miss) {
  const GatherRequest& rows = feature.rows;
  RowEntry entry = {nullptr, 0, 0, 0, kAddZeros};
  if (ReadId(rows, position) == feature.padding_id) {
    entry.lane = kLeaveOut;
    return entry;
  }
  if (pool.weights_dev) entry.position = __float_as_uint(pool.weights_dev[position]);
  const int64_t place = PlaceOf(rows, position);
  if (!TouchPlace(rows, position, place)) return entry;
  const RowSegment& segment = SegmentOf(rows, place);
  const int64_t row = place - segment.origin;
  const uint8_t* slot = segment.rows.slots + row * rows.slot_bytes;
  bool from_store = !segment.hits;
  if (from_store) {
    if (const uint8_t* staged = StagedSlot(pool, feature, place, slot)) {
      slot = staged;
      from_store = false;
    }
  }
  const RowRef ref = RowInSlot(rows, segment, row, slot, row_bytes, position);
  if (ref.kind == RowKind::kNothing) return entry;
  hit = ref.hit;
  miss = !ref.hit;
  if (ref.kind == RowKind::kRaw) {
    entry.lane = kAddRaw;
    entry.base = ref.source;
    const bool overflows = rows.slot_bytes < row_bytes;
    if (overflows ? !ref.hit : from_store) counts.AddBytes(row_bytes);
    if (overflows && from_store) counts.AddBytes(kOverflowIndexBytes);
    return entry;
  }
  entry.lane = kAddPayload;
  entry.skew = static_cast<uint8_t>(reinterpret_cast<uintptr_t>(ref.source) % Lanes::kBaseAlign);
  entry.base = ref.source - entry.skew;
  entry.end = static_cast<uint16_t>(entry.skew + rows.slot_bytes);
  if (from_store) counts.AddBytes(RoundUp(entry.end, kLoadBytes));
  return entry;
}

// The 16 bytes from value `column` on of a row that is not compressed, wherever it lies. Values behind its end are 0.
template <typename Lanes>
__device__ __forceinline__ uint4 LoadRaw(const uint8_t* row, int32_t column, int32_t num_values) {
  using Word = typename Lanes::Word;
  const Word* const values = reinterpret_cast<const Word*>(row) + column;
  if (reinterpret_cast<uintptr_t>(values) % 16 == 0 && column + Lanes::kValues <= num_values) {
    return *reinterpret_cast<const uint4*>(values);
  }
  uint32_t words[4] = {};
  constexpr int kPerWord = Lanes::kValues / 4;
#pragma unroll
  for (int v = 0; v < Lanes::kValues; ++v) {
    if (column + v >= num_values) break;
    const uint32_t bits = values[v];
    words[v / kPerWord] |= bits << (v % kPerWord * 16);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// Adds row r of the tile to what its group has pooled. Called by the lanes of a group.
template <typename Lanes>
__device__ __forceinline__ void AddRow(const LaneView<Lanes>& view, const GatherRequest& request,
                                       const TileRows<Lanes>& tile, const UnitValues<Lanes>& values, int r,
                                       const RowEntry& row, int64_t position, bool is_max, bool weighted,
                                       PooledColumns<Lanes>& pooled) {
  using Float = typename Lanes::Float;
  uint8_t kind = row.lane;
  if (kind == kLeaveOut) return;
  if (kind == kAddPayload) {
    const int32_t needed =
        view.fixed_escape_byte + DictLayout::EscapeBytes(tile.escapes_before[r]) + tile.plain_before[r];
    if (needed > view.payload_limit) {
      if (view.group_lane == 0) ReportError(request, kDamagedRow, position);
      kind = kAddZeros;
    }
  }
  const float weight = __uint_as_float(row.position);
#pragma unroll
  for (int step = 0; step < Lanes::kSteps; ++step) {
    const int32_t column = step * Lanes::kStepValues + view.group_lane * Lanes::kValues;
    if (column >= view.num_values) break;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (kind == kAddPayload) {
      const uint8_t* low = view.low_window + (r * LaneView<Lanes>::kTileRowStride + tile.rows[r].skew +
                                              step * Lanes::kStepValues * Lanes::kLowBits / 8);
      const int before = view.codes_bytes + (Lanes::kLaneLowBytes % 4 ? view.group_lane * Lanes::kLaneLowBytes : 0);
      x = AssembleValues<Float>(low, before % 4, values.symbols[r * Lanes::kSteps + step]);
    } else if (kind == kAddRaw) {
      x = LoadRaw<Lanes>(row.base, column, view.num_values);
    }
    pooled.Add(step, x, is_max, weighted, weight);
  }
  ++pooled.count;
}

template <typename Lanes>
__global__ void __launch_bounds__(kThreads, Lanes::kBlocksPerMultiprocessor)
    PoolDictLanesKernel(const PoolFeature* features, int32_t num_features, const __grid_constant__ PoolRequest pool,
                        int32_t least_units) {
  constexpr int kStreams = kWarpsPerBlock * Lanes::kGroups;
  extern __shared__ uint4 shared[];
  __shared__ BlockBags bags;
  __shared__ int64_t end_bag;
  __shared__ BlockCounts counts;
  __shared__ int32_t bag_ends[kMaxBlockBags];
  __shared__ alignas(PoolFeature) uint8_t feature_bytes[sizeof(PoolFeature)];
  PoolFeature& feature = *reinterpret_cast<PoolFeature*>(feature_bytes);
  const int warp_in_block = threadIdx.x / kWarpSize;
  if (threadIdx.x < 2 * kWarpSize) FindBlockBags(features, num_features, pool, kStreams, least_units, bags, end_bag);
  __syncthreads();
  const int32_t num_bags = static_cast<int32_t>(max(int64_t{0}, min(end_bag - bags.first_bag, int64_t{kMaxBlockBags})));
  if (num_bags == 0) return;
  static_assert(sizeof(PoolFeature) % sizeof(uint32_t) == 0);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(PoolFeature) / sizeof(uint32_t)); i += kThreads) {
    reinterpret_cast<uint32_t*>(feature_bytes)[i] = reinterpret_cast<const uint32_t*>(features + bags.feature)[i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_bags; i += kThreads) {
    const int64_t end = BagStart(pool, feature.key * pool.num_bags + bags.first_bag + i + 1);
    bag_ends[i] = static_cast<int32_t>(max(int64_t{0}, end - bags.first_id));
  }
  if (threadIdx.x == 0) {
    counts = {0, 0, 0};
    bags.num_bags = num_bags;
    feature.rows.ids_dev = pool.ids_dev;
    feature.rows.ids_are_int64 = pool.ids_are_int64;
  }
  __syncthreads();

  const CodeBits codes = feature.codec.codes;
  const LaneView<Lanes> view(feature.codec, codes, feature.rows, feature.window_bytes,
                             reinterpret_cast<uint8_t*>(shared));
  const PoolOutput<Lanes> output(pool, feature, bags, view.num_values);
  const int32_t row_bytes = view.layout.row_bytes, num_ids = bag_ends[num_bags - 1];
  auto start_of_stream = [&](int stream) -> int32_t {
    const int32_t even = static_cast<int32_t>(int64_t{num_ids} * stream / kStreams);
    if (even >= num_ids) return num_ids;
    const BagIds ids(bag_ends, FindBag(bag_ends, num_bags, even));
    return ids.PieceBegin(ids.PieceAt(even));
  };
  const int stream = warp_in_block * Lanes::kGroups + view.group;
  int32_t at = start_of_stream(stream);
  const int32_t end = start_of_stream(stream + 1);
  // The bag that is being pooled, and where the piece of it ends.
  int32_t bag = 0, piece_end = 0;
  const auto find_piece = [&](int32_t id) {
    while (bag_ends[bag] <= id && bag + 1 < num_bags) ++bag;
    const BagIds ids(bag_ends, bag);
    piece_end = ids.PieceEnd(ids.PieceAt(id));
  };
  if (at < end) {
    bag = FindBag(bag_ends, num_bags, at);
    find_piece(at);
  }
  const bool is_max = feature.mode == PoolMode::kMax, weighted = pool.weights_dev != nullptr;
  PooledColumns<Lanes> pooled;
  pooled.Clear();
  while (__any_sync(kWholeWarp, at < end)) {
    const int32_t count = max(0, min(end - at, Lanes::kLanes));
    RowEntry entry = {nullptr, 0, 0, 0, kLeaveOut};
    bool hit = false, miss = false;
    if (view.group_lane < count) {
      entry = FindRow<Lanes>(pool, feature, row_bytes, bags.first_id + at + view.group_lane, counts, hit, miss);
    }
    counts.AddRows(hit, miss, view.lane);
    view.entries[view.group_lane * Lanes::kGroups + view.group] = entry;
    int32_t most = count;
#pragma unroll
    for (int distance = Lanes::kLanes; distance < kWarpSize; distance *= 2) {
      most = max(most, __shfl_xor_sync(kWholeWarp, most, distance));
    }
    __syncwarp();
    const int32_t end_row = (most + Lanes::kRows - 1) / Lanes::kRows * Lanes::kTileRows;
    FetchTile<Lanes> fetch;
    fetch.Start(view, 0);
    for (int32_t first_row = 0; first_row < end_row; first_row += Lanes::kTileRows) {
      fetch.Finish(view, first_row);
      __syncwarp();
      if (first_row + Lanes::kTileRows < end_row) fetch.Start(view, first_row + Lanes::kTileRows);
      TileRows<Lanes> tile(view, first_row);
      UnitValues<Lanes> values;
      ResolveSymbols(view, 0, view.num_values, tile, values);
#pragma unroll
      for (int r = 0; r < Lanes::kRows; ++r) {
        const int32_t i = first_row / Lanes::kGroups + r;
        if (i < count) {
          if (at + i >= piece_end) {
            output.Store(bag_ends, bag, piece_end - 1, pooled, view.group_lane);
            find_piece(at + i);
            pooled.Clear();
          }
          // Read anew: registers are few, and what is only for some rows need not be in them.
          const RowEntry& row = view.entries[first_row + r * Lanes::kGroups + view.group];
          AddRow(view, feature.rows, tile, values, r, row, bags.first_id + at + i, is_max, weighted, pooled);
        }
      }
      __syncwarp();  // the windows are filled again
    }
    at += count;
    __syncwarp();  // the list is filled again
  }
  if (piece_end > 0) output.Store(bag_ends, bag, piece_end - 1, pooled, view.group_lane);
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto add = [&](GatherCounter counter, unsigned long long value) {
      if (value) atomicAdd(reinterpret_cast<unsigned long long*>(feature.rows.counters_dev + counter), value);
    };
    add(kHits, counts.hits);
    add(kMisses, counts.misses);
    add(kStoreBytes, counts.store_bytes);
  }
  output.StoreOthers(bag_ends, warp_in_block, view.lane);
}

// --- which kernel takes which codec and rows --------------------------------------------------------------------

template <typename Float, typename Form, typename Shape>
std::optional<GatherKernel> PoolKernelOfShape(const DictLayout& layout, int32_t slot_bytes) {
  using Lanes = DictLanes<Float, Form, Shape, false>;
  const int32_t window_bytes = RoundUp(slot_bytes + Lanes::kBaseAlign - 4, kLoadBytes);
  if (layout.num_values > Lanes::kSteps * Lanes::kStepValues || window_bytes > Lanes::kFetchBytes) return std::nullopt;
  const auto* function = reinterpret_cast<const void*>(&PoolDictLanesKernel<Lanes>);
  const size_t shared_bytes = DictShared<Lanes>(layout, window_bytes).block_bytes();
  return GatherKernel(function, slot_bytes, window_bytes, shared_bytes, Lanes::kGroups);
}

template <typename Float, typename Form>
std::optional<GatherKernel> PoolKernelOfForm(const DictLayout& layout, int32_t slot_bytes) {
  if (auto kernel = PoolKernelOfShape<Float, Form, ShortRows<8>>(layout, slot_bytes)) return kernel;
  if (auto kernel = PoolKernelOfShape<Float, Form, ShortRows<16>>(layout, slot_bytes)) return kernel;
  if (auto kernel = PoolKernelOfShape<Float, Form, ShortRows<32>>(layout, slot_bytes)) return kernel;
  return PoolKernelOfShape<Float, Form, TwoStepRows>(layout, slot_bytes);
}

// Of rows of up to two steps (1 KB and, in slots, the same), without a zero code.
template <typename Float>
std::optional<GatherKernel> ChoosePoolDictLanes(const DeviceDictCodec& codec, const GatherRequest& request) {
  const DictLayout& layout = codec.layout;
  if (!TakesLayout<Float>(codec) || layout.zero_code || !layout.sign_low || !RowsToGather(request, 1).aligned) {
    return std::nullopt;
  }
  if (std::min(request.slot_bytes, layout.row_bytes - 1) < layout.codes_bytes() + layout.LowBytes(layout.num_values)) {
    return std::nullopt;  // every payload is damaged
  }
  return layout.per_column ? PoolKernelOfForm<Float, DictForm<true, false>>(layout, request.slot_bytes)
                           : PoolKernelOfForm<Float, DictForm<false, false>>(layout, request.slot_bytes);
}

}  // namespace ibp
