// Codec "ibp" on a GPU.
#include "core/ibp_tables.h"
#include "cuda/gpu_codec.h"
#include "cuda/ibp_kernels.h"

namespace ibp {
namespace {

class GpuIbpCodec final : public GpuCodec {
 public:
  explicit GpuIbpCodec(const DeviceIbpCodec& codec) : GpuCodec(codec.layout.row_bytes), codec_(codec) {}

  GatherKernel ChooseGather(const GatherRequest& request, int out_alignment) const override {
    return ibp::ChooseGather(codec_, request, out_alignment);
  }
  const void* device_codec() const override { return &codec_; }
  void Measure(const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
               cudaStream_t stream) const override {
    LaunchMeasure(codec_, rows_dev, num_rows, payload_bytes_dev, stream);
  }
  int64_t EncodeScratchBytes() const override { return ibp::EncodeScratchBytes(codec_.layout); }
  void Encode(const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target, uint8_t* scratch_dev,
              cudaStream_t stream) const override {
    LaunchEncode(codec_, rows_dev, num_rows, target, scratch_dev, stream);
  }

 private:
  const DeviceIbpCodec codec_;
};

}  // namespace

std::shared_ptr<GpuCodec> Make_gpu_ibp_codec(const CodecParameters& parameters, const uint8_t* tables_dev,
                                             int64_t tables_bytes) {
  DeviceIbpCodec codec;
  codec.layout = MakeIbpLayout(parameters.Bytes("mask").length, parameters.Number("chunk_bits"));
  CheckEqual("tables bytes", IbpTablesBytes(codec.layout), tables_bytes);
  codec.tables_dev = reinterpret_cast<const uint32_t*>(tables_dev);
  return std::make_shared<GpuIbpCodec>(codec);
}

}  // namespace ibp
