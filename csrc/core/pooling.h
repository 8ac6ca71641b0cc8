// How the rows of a bag are pooled, the same on every device, bit for bit.
//
// Values are taken to float32, which is exact, and pooled there. A bag of fewer than 2 * kPieceIds ids is one piece. A
// longer one is cut into pieces of kPieceIds ids; the last one takes what is left over, too.
//   sum   Each piece starts from 0 and adds its rows one after the other: a row's value times its weight, rounded, then
//         added, rounded. The sums of the pieces are added in the same way, from the first one on.
//   mean  The sum, divided by how many ids there are, rounded.
//   max   The greatest value; of equal ones (0 and -0) the first. NaN if there is one.
// Ids that are padding are left out of all of it, but not of how the bag is cut. A bag without other ids is 0. The
// result is rounded to the type of the values, to nearest, ties to even; a NaN becomes the one of CanonicalNan.
#pragma once

#include "core/bits.h"

namespace ibp {

enum class PoolMode : int32_t { kSum = 0, kMean = 1, kMax = 2 };
enum class PoolType : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

constexpr int64_t kPieceIds = 128;

IBP_HOST_DEVICE constexpr int64_t NumPieces(int64_t bag_ids) {
  return bag_ids < 2 * kPieceIds ? 1 : bag_ids / kPieceIds;
}
// Where piece `piece` of a bag ends, counted from the bag's start.
IBP_HOST_DEVICE constexpr int64_t PieceEnd(int64_t bag_ids, int64_t piece) {
  return piece + 1 < NumPieces(bag_ids) ? (piece + 1) * kPieceIds : bag_ids;
}
static_assert(NumPieces(255) == 1 && NumPieces(256) == 2 && NumPieces(383) == 2 && PieceEnd(383, 0) == 128 &&
              PieceEnd(383, 1) == 383);

IBP_HOST_DEVICE constexpr int32_t PoolTypeBytes(PoolType type) { return type == PoolType::kFloat32 ? 4 : 2; }

// Quiet, positive, no payload.
IBP_HOST_DEVICE constexpr uint32_t CanonicalNan(PoolType type) {
  return type == PoolType::kFloat32 ? 0x7fc00000u : type == PoolType::kFloat16 ? 0x7e00u : 0x7fc0u;
}

// The greater of what was pooled before and the next value.
IBP_HOST_DEVICE float PoolMax(float before, float next) {
  return before == before && !(next <= before) ? next : before;
}

}  // namespace ibp
