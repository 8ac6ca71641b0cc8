// The fast gather of codec "dict": what a kernel is made for, and the words that the other files use.
//
// It takes the usual forms: codes of 2 or 3 bits, symbols of at most 8 bits, nothing trimmed (but trimmed.cuh).
//
//   a warp, 32 lanes               a tile: kRows rows for each group               a row: kSteps steps
//
//   +- group 0 -+- group 1 -+      row 0: +- group 0 -+- group 1 -+                 <------ kStepValues ------>
//   | 0 .. 15   | 16 .. 31  |      row 1: +-----------+-----------+                 +------+------+-- ... -----+
//   +-----------+-----------+      row 2: +-----------+-----------+        step 0:  | lane | lane |    | lane  |
//     kLanes lanes a group         row 3: +-----------+-----------+                 |  0   |  1   |    | last  |
//     (here 16, so kGroups = 2)    a "row" of the picture holds one                 +------+------+-- ... -----+
//                                  row of the batch for each group         step 1:  | lane | lane |    | lane  |
//
// Unit: one step of one row. A lane decodes 16 bytes of it, kValues values. A tile has kUnits = kRows * kSteps units
// for each group. Long rows take several tiles, one after the other.
//
// Quad: four values of a lane in a unit. A quad's codes fill the nibbles of 16 bits, its symbols the bytes of a word.
//
// Batch: the up to 32 rows that a warp looks up at once, one a lane.
//
// Window: the start of a row's payload in shared memory (shared.cuh).
//
// What makes it fast is that a row costs few instructions: a batch is looked up at once and listed in shared memory;
// the prefix sums of all units of a tile share words (unit_counts.cuh); whatever is not a payload is dealt with after
// the batch; and payloads of the next tile are on their way into registers while this one is decoded.
#pragma once

#include <type_traits>

#include "cuda/dict_lanes/values.cuh"
#include "cuda/gather_kernel.cuh"

namespace ibp {

// --- shapes: how rows are spread over lanes -------------------------------------------------------------------
//   kLanes   lanes that share a row
//   kRows    rows of a group in a tile
//   kSteps   steps of a row in a tile
//   kLoads   16-byte loads of a lane that bring the first bytes of a payload
//   kBlocks  of a multiprocessor: two have 128 registers a thread, three 80
template <int kLanes_, int kRows_, int kSteps_, int kLoads_, int kBlocks_>
struct Shape {
  static constexpr int kLanes = kLanes_, kRows = kRows_, kSteps = kSteps_, kLoads = kLoads_, kBlocks = kBlocks_;
  static constexpr bool kLong = false;
};

// One step, and a payload that one load of each lane brings.
template <int kLanes_>
using ShortRows = Shape<kLanes_, 4, 1, 1, 3>;

using TwoStepRows = Shape<32, 2, 2, 2, 3>;

template <int kLanes_>
using ThreeStepRows = Shape<kLanes_, 2, 3, 3, 2>;

// Of fewer steps, those that a row does not have are left out.
template <int kLanes_>
using SixStepRows = Shape<kLanes_, 1, 6, 6, 2>;

// Several tiles a row, and windows of any size.
struct LongRows : Shape<32, 1, 4, 8, 2> {
  static constexpr bool kLong = true;
};

// --- forms: what payloads look like ---------------------------------------------------------------------------
// Without a zero code every value has low bits, so all offsets in a payload but those of what is escaped are known
// beforehand. With one they follow from how many values before have low bits, and escapes from how many of the row
// have.
template <bool kPerColumn_, bool kZeroCode_>
struct DictForm {
  static_assert(!(kPerColumn_ && kZeroCode_), "per-column dictionaries go without a zero code");
  static constexpr bool kPerColumn = kPerColumn_;  // a dictionary for each column, not one for the row
  static constexpr bool kZeroCode = kZeroCode_;
};

// --- a kernel: float type, form, shape ------------------------------------------------------------------------
// kWhole: output rows are multiples of 16 bytes and start at one, and low bits start at a multiple of 4 bytes.
template <typename Float_, typename Form, typename Shape, bool kWhole_>
struct DictLanes {
  using Float = Float_;
  using Word = typename Float::Word;
  static constexpr int kValueBytes = sizeof(Word), kLowBits = Float::kLowBits, kSymbolBits = Float::kSymbolBits;
  static constexpr bool kPerColumn = Form::kPerColumn, kZeroCode = Form::kZeroCode, kWhole = kWhole_;
  static constexpr int kLanes = Shape::kLanes, kRows = Shape::kRows, kSteps = Shape::kSteps, kLoads = Shape::kLoads;
  static constexpr bool kLongRows = Shape::kLong;
  static constexpr int kUnits = kRows * kSteps;
  static constexpr int kValues = Float::kValues, kQuads = kValues / 4;
  static constexpr int kGroups = kWarpSize / kLanes, kTileRows = kRows * kGroups;
  static constexpr int kStepValues = kLanes * kValues;
  static constexpr int32_t kLaneLowBytes = kValues * kLowBits / 8;
  static constexpr int32_t kFetchBytes = kLanes * kLoads * kLoadBytes;
  static constexpr bool kManySteps = kSteps > 3;  // a row may need fewer: then the others are skipped
  static constexpr int kBlocksPerMultiprocessor = kZeroCode ? 2 : Shape::kBlocks;
  // Where several loads bring a payload, none of them should share a memory sector with the next one.
  static constexpr int32_t kBaseAlign = kLoads > 1 ? kSectorBytes : kLoadBytes;

  static_assert(kWarpSize % kTileRows == 0, "the tiles of a batch end with its list");
  static_assert(!kLongRows || (kRows == 1 && kGroups == 1), "a row of several tiles has the warp to itself");
};

}  // namespace ibp
