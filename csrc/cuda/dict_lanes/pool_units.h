// How bags are dealt to blocks.
#pragma once

namespace ibp {

constexpr int kMaxBlockBags = 1024;
// What a bag costs a block, in ids.
constexpr int kBagUnits = 4;
// Of a block. No more bags than kMaxBlockBags start within the most.
constexpr int kMinBlockUnits = 256, kMaxBlockUnits = kMaxBlockBags * kBagUnits;

}  // namespace ibp
