#include "cpu/ibp_codec.h"

#include <cstring>

namespace ibp {

IbpCodec MakeIbpCodec(const uint8_t* mask, const uint8_t* bitval, int64_t row_bytes, int64_t chunk_bits) {
  IbpCodec codec;
  codec.layout = MakeIbpLayout(row_bytes, chunk_bits);
  CheckInvariantBits(codec.layout, mask, bitval);
  codec.num_groups = static_cast<int32_t>((row_bytes + 7) / 8);
  const size_t groups = static_cast<size_t>(codec.num_groups);
  codec.mask.assign(groups, 0);
  codec.bitval.assign(groups, 0);
  codec.valid.assign(groups, 0);
  std::memcpy(codec.mask.data(), mask, static_cast<size_t>(row_bytes));
  std::memcpy(codec.bitval.data(), bitval, static_cast<size_t>(row_bytes));
  std::memset(codec.valid.data(), 0xff, static_cast<size_t>(row_bytes));
  return codec;
}

}  // namespace ibp
