// Codec "dict" on a GPU.
#include <algorithm>

#include "core/dict_parameters.h"
#include "core/dict_tables.h"
#include "cuda/dict_kernels.h"
#include "cuda/gpu_codec.h"

namespace ibp {
namespace {

class GpuDictCodec final : public GpuCodec {
 public:
  explicit GpuDictCodec(const DeviceDictCodec& codec) : GpuCodec(codec.layout.row_bytes), codec_(codec) {}

  GatherKernel ChooseGather(const GatherRequest& request, int out_alignment) const override {
    return ibp::ChooseGather(codec_, request, out_alignment);
  }
  std::optional<GatherKernel> ChoosePool(PoolFeature& feature) const override {
    if (feature.rows.packing.is_packed()) return std::nullopt;  // what is staged are slots
    for (const auto choose : {&ChoosePoolFloat32, &ChoosePoolBfloat16, &ChoosePoolFloat16}) {
      const auto kernel = choose(codec_, feature.rows);
      if (!kernel) continue;
      feature.codec = codec_;
      feature.rows.lead_bytes = kernel->lead_bytes;
      feature.window_bytes = kernel->window_bytes;
      return kernel;
    }
    return std::nullopt;
  }
  const void* device_codec() const override { return &codec_; }
  void Measure(const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
               cudaStream_t stream) const override {
    CheckEncodes();
    LaunchMeasure(codec_, rows_dev, num_rows, payload_bytes_dev, stream);
  }
  int64_t EncodeScratchBytes() const override { return ibp::EncodeScratchBytes(codec_.layout); }
  void Encode(const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target, uint8_t* scratch_dev,
              cudaStream_t stream) const override {
    CheckEncodes();
    LaunchEncode(codec_, rows_dev, num_rows, target, scratch_dev, stream);
  }
  bool CanEncodeOnce(int64_t slot_bytes) const override { return ibp::CanEncodeOnce(codec_, slot_bytes); }
  void EncodeOnce(const uint8_t* rows_dev, int64_t num_rows, const EncodeOnceTarget& target,
                  cudaStream_t stream) const override {
    LaunchEncodeOnce(codec_, rows_dev, num_rows, target, stream);
  }

 private:
  void CheckEncodes() const {
    if (codec_.code_of_symbol_dev == nullptr) {
      Throw<ArgumentError>("codec: want one with code_of_symbol, got one without");
    }
  }

  const DeviceDictCodec codec_;
};

}  // namespace

std::shared_ptr<GpuCodec> Make_gpu_dict_codec(const CodecParameters& parameters, const uint8_t* tables_dev,
                                              int64_t tables_bytes) {
  const DictLayout layout = DictLayoutOf(parameters);
  const auto escapes = parameters.Symbols("escape_dictionary");
  CheckEqual("escape_dictionary entries", int64_t{kPlainSymbol}, escapes.length);
  const DictTables all(layout, true), of_gathers(layout, false);
  const bool encoder = tables_bytes == all.bytes;
  if (!encoder) CheckEqual("tables bytes", of_gathers.bytes, tables_bytes);
  DeviceDictCodec codec;
  codec.layout = layout;
  codec.dictionary_dev = reinterpret_cast<const uint16_t*>(tables_dev + all.dictionary);
  if (layout.code_bits == 3) codec.codes = CodeBits(3);
  if (all.has_packed) codec.packed_dev = reinterpret_cast<const uint64_t*>(tables_dev + all.packed);
  std::copy_n(escapes.data, kPlainSymbol, codec.escape_dictionary);
  if (encoder) {
    codec.code_of_symbol_dev = tables_dev + all.code_of_symbol;
    codec.escape_code_of_symbol_dev = tables_dev + all.escape_code_of_symbol;
  }
  return std::make_shared<GpuDictCodec>(codec);
}

}  // namespace ibp
