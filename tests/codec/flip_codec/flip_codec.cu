// Codec "flip" on a GPU.
#include "cuda/encode_common.cuh"
#include "cuda/gather_kernel.cuh"
#include "cuda/gpu_codec.h"

namespace ibp {
namespace {

struct DeviceFlipCodec {
  struct {
    int32_t row_bytes = 0;
  } layout;
  const uint8_t* constant_dev = nullptr;
};

struct FlipDecoder {
  using Codec = DeviceFlipCodec;
  static constexpr int kLoads = 1;
  static constexpr int32_t kHeadBytes = 0;

  __device__ static int32_t Decode(const Codec& codec, const GatherRequest&, int32_t, const uint8_t* source,
                                   const FirstBytes& first, uint8_t* out, int lane) {
    const int32_t last = codec.layout.row_bytes - 1;
    if (last > first.payload_limit) return -1;
    for (int32_t i = lane; i < last; i += kWarpSize) out[i] = source[i] ^ codec.constant_dev[i];
    if (lane == 0) out[last] = codec.constant_dev[last];
    return 0;
  }
};

__global__ void MeasureKernel(DeviceFlipCodec codec, const uint8_t* rows, int64_t num_rows, int32_t* payload_bytes) {
  const int32_t row_bytes = codec.layout.row_bytes, last = row_bytes - 1;
  for (int64_t row = threadIdx.x; row < num_rows; row += kEncodeThreads) {
    payload_bytes[row] = rows[row * row_bytes + last] == codec.constant_dev[last] ? last : row_bytes;
  }
}

__global__ void EncodeKernel(DeviceFlipCodec codec, const uint8_t* rows, int64_t num_rows, EncodeTarget target,
                             uint8_t* scratch, int64_t line_bytes) {
  const int32_t row_bytes = codec.layout.row_bytes, last = row_bytes - 1;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kEncodeWarps + threadIdx.x / kWarpSize;
  uint8_t* line = scratch + warp * line_bytes;
  for (int64_t row = warp; row < num_rows; row += int64_t{gridDim.x} * kEncodeWarps) {
    const uint8_t* source = rows + row * row_bytes;
    for (int32_t i = lane; i < last; i += kWarpSize) line[i] = source[i] ^ codec.constant_dev[i];
    __syncwarp();
    WriteSlot(target, row, source, row_bytes, reinterpret_cast<const uint32_t*>(line),
              source[last] == codec.constant_dev[last] ? last : row_bytes, lane);
    __syncwarp();
  }
}

class GpuFlipCodec final : public GpuCodec {
 public:
  explicit GpuFlipCodec(const DeviceFlipCodec& codec) : GpuCodec(codec.layout.row_bytes), codec_(codec) {}

  GatherKernel ChooseGather(const GatherRequest& request, int) const override {
    return MakeGatherKernel<FlipDecoder>(request);
  }
  const void* device_codec() const override { return &codec_; }
  void Measure(const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
               cudaStream_t stream) const override {
    MeasureKernel<<<1, kEncodeThreads, 0, stream>>>(codec_, rows_dev, num_rows, payload_bytes_dev);
    IBP_CUDA_CHECK(cudaGetLastError());
  }
  int64_t EncodeScratchBytes() const override { return ibp::EncodeScratchBytes(LineWords()); }
  void Encode(const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target, uint8_t* scratch_dev,
              cudaStream_t stream) const override {
    if (num_rows == 0) return;
    const int grid = StartEncode(target, num_rows, stream);
    EncodeKernel<<<grid, kEncodeThreads, 0, stream>>>(codec_, rows_dev, num_rows, target, scratch_dev, 4 * LineWords());
    IBP_CUDA_CHECK(cudaGetLastError());
  }

 private:
  int64_t LineWords() const { return CeilDiv(row_bytes(), 4); }

  const DeviceFlipCodec codec_;
};

}  // namespace

std::shared_ptr<GpuCodec> Make_gpu_flip_codec(const CodecParameters& parameters, const uint8_t* tables_dev,
                                              int64_t tables_bytes) {
  DeviceFlipCodec codec;
  codec.layout.row_bytes = static_cast<int32_t>(parameters.Bytes("constant").length);
  CheckEqual("tables bytes", int64_t{codec.layout.row_bytes}, tables_bytes);
  codec.constant_dev = tables_dev;
  return std::make_shared<GpuFlipCodec>(codec);
}

}  // namespace ibp
