#include "cpu/ibp_codec.h"

#include <cstring>

#include "core/codec_parameters.h"
#include "core/ibp_tables.h"
#include "cpu/row_ops.h"

namespace ibp {

IbpCodec::IbpCodec(const uint8_t* mask_bytes, const uint8_t* bitval_bytes, int64_t row_bytes_, int64_t chunk_bits)
    : layout(MakeIbpLayout(row_bytes_, chunk_bits)) {
  CheckInvariantBits(layout, mask_bytes, bitval_bytes);
  row_bytes = layout.row_bytes;
  scratch_words = int64_t{layout.num_chunks} / 64 + 1;
  num_groups = static_cast<int32_t>((row_bytes_ + 7) / 8);
  const size_t groups = static_cast<size_t>(num_groups), bytes = static_cast<size_t>(row_bytes);
  mask.assign(groups, 0);
  bitval.assign(groups, 0);
  valid.assign(groups, 0);
  std::memcpy(mask.data(), mask_bytes, bytes);
  std::memcpy(bitval.data(), bitval_bytes, bytes);
  std::memset(valid.data(), 0xff, bytes);
  keeps.assign(groups / 64 + 3, 0);
  int64_t keeping = 0;
  for (size_t group = 0; group < groups; ++group) {
    if (mask[group] == valid[group]) continue;
    keeps[group / 64] |= uint64_t{1} << (group % 64);
    ++keeping;
  }
  sparse = 8 * keeping <= num_groups && layout.chunk_bits <= 64;
}

const RowOps& IbpCodec::Ops(const CodePath& path) const { return path.ibp; }

int64_t IbpCodec::DeviceTableBytes(bool) const { return IbpTablesBytes(layout); }

void IbpCodec::WriteDeviceTables(bool, uint8_t* out) const {
  MakeIbpTables(layout, reinterpret_cast<const uint8_t*>(mask.data()), reinterpret_cast<const uint8_t*>(bitval.data()),
                reinterpret_cast<uint32_t*>(out));
}

std::unique_ptr<RowCodec> Make_ibp_codec(const CodecParameters& parameters) {
  const auto mask = parameters.Bytes("mask"), bitval = parameters.Bytes("bitval");
  CheckEqual("bitval bytes", mask.length, bitval.length);
  return std::make_unique<IbpCodec>(mask.data, bitval.data, mask.length, parameters.Number("chunk_bits"));
}

}  // namespace ibp
