// Codec "flip" on the CPU: the payload is the row XOR a constant row, without its last byte, which is 0.
#include <vector>

#include "core/codec_parameters.h"
#include "cpu/row_ops.h"

namespace ibp {
namespace {

struct FlipCodec final : RowCodec {
  std::vector<uint8_t> constant;

  explicit FlipCodec(const CodecParameters::Array<uint8_t>& given) : constant(given.data, given.data + given.length) {
    CheckAtLeast("constant bytes", 2, given.length);
    row_bytes = static_cast<int32_t>(given.length);
  }
  const RowOps& Ops(const CodePath&) const override {
    static const RowOps ops = {&Measure, &Encode, &Decode};
    return ops;
  }
  int64_t DeviceTableBytes(bool) const override { return row_bytes; }
  void WriteDeviceTables(bool, uint8_t* out) const override { std::copy(constant.begin(), constant.end(), out); }

  static const std::vector<uint8_t>& ConstantOf(const RowCodec& codec) {
    return static_cast<const FlipCodec&>(codec).constant;
  }
  static int32_t Measure(const RowCodec& codec, const uint8_t* row, uint64_t*) {
    const int32_t last = codec.row_bytes - 1;
    return row[last] == ConstantOf(codec).back() ? last : codec.row_bytes;
  }
  static void Encode(const RowCodec& codec, const uint8_t* row, const uint64_t*, uint8_t* payload, int32_t bytes) {
    for (int32_t i = 0; i < bytes; ++i) payload[i] = row[i] ^ ConstantOf(codec)[static_cast<size_t>(i)];
  }
  static bool Decode(const RowCodec& codec, const uint8_t* payload, int32_t limit_bytes, uint8_t* row) {
    const int32_t last = codec.row_bytes - 1;
    if (last > limit_bytes) return false;
    Encode(codec, payload, nullptr, row, last);
    row[last] = ConstantOf(codec).back();
    return true;
  }
};

}  // namespace

std::unique_ptr<RowCodec> Make_flip_codec(const CodecParameters& parameters) {
  return std::make_unique<FlipCodec>(parameters.Bytes("constant"));
}

}  // namespace ibp
