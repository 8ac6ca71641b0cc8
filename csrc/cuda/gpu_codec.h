// What a codec does on a GPU. Everything that differs between codecs is a method here; a plan, the encoder's caller and
// the bindings know no codec by name. To add one: see core/codec_list.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "core/codec_parameters.h"
#include "cuda/encode_target.h"
#include "cuda/gather_launch.h"
#include "cuda/pool_request.h"

namespace ibp {

// Immutable. Its tables are the caller's, in device memory that outlives it. Methods work on the current device,
// enqueue on the stream, return at once if there is nothing to do, never synchronise or allocate, and throw CudaError
// if a launch fails.
class GpuCodec {
 public:
  virtual ~GpuCodec() = default;
  GpuCodec(const GpuCodec&) = delete;
  GpuCodec& operator=(const GpuCodec&) = delete;

  int32_t row_bytes() const { return row_bytes_; }

  // The kernel that gathers this request to an output that starts at a multiple of out_alignment bytes (1 to 16): of
  // the request only what is the same for all gathers of a plan is looked at. Rows with a bad id, and damaged ones,
  // come out as zeros and are reported; nothing is read outside the rows.
  virtual GatherKernel ChooseGather(const GatherRequest& request, int out_alignment) const = 0;
  // The kernel that looks up, decodes and pools rows like those of feature.rows; sets what else it reads of the
  // feature. None: there is none for this codec or these rows, which are then gathered and pooled one after the other.
  virtual std::optional<GatherKernel> ChoosePool(PoolFeature&) const { return std::nullopt; }
  // What its kernel takes first.
  virtual const void* device_codec() const = 0;

  // rows_dev: [num_rows, row_bytes]. Lengths, also of payloads that are not shorter than the row.
  virtual void Measure(const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
                       cudaStream_t stream) const = 0;
  // Slots, bitmask and overflow are written completely (slack excepted). scratch_dev: EncodeScratchBytes() bytes.
  virtual int64_t EncodeScratchBytes() const = 0;
  virtual void Encode(const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target, uint8_t* scratch_dev,
                      cudaStream_t stream) const = 0;

  // Whether EncodeOnce takes slots of this length. Codecs can do without.
  virtual bool CanEncodeOnce(int64_t slot_bytes) const {
    static_cast<void>(slot_bytes);
    return false;
  }
  // Encodes rows that nobody has measured, in one pass: the payloads are the same as Encode's.
  virtual void EncodeOnce(const uint8_t* rows_dev, int64_t num_rows, const EncodeOnceTarget& target,
                          cudaStream_t stream) const {
    static_cast<void>(rows_dev), static_cast<void>(num_rows), static_cast<void>(target), static_cast<void>(stream);
    Throw<ArgumentError>("codec: want one that encodes in one pass");
  }

 protected:
  explicit GpuCodec(int32_t row_bytes) : row_bytes_(row_bytes) {}

 private:
  const int32_t row_bytes_;
};

// name: of core/codec_list.h; tables_dev: what RowCodec::WriteDeviceTables of the same codec wrote. Throws
// ArgumentError.
std::shared_ptr<GpuCodec> MakeGpuCodec(const char* name, const CodecParameters& parameters, const uint8_t* tables_dev,
                                       int64_t tables_bytes);

}  // namespace ibp
