#include <cstring>

#include "core/codec_list.h"
#include "cuda/gpu_codec.h"

namespace ibp {

#define IBP_DECLARE(name) \
  std::shared_ptr<GpuCodec> Make_gpu_##name##_codec(const CodecParameters&, const uint8_t* tables_dev, int64_t);
IBP_FOR_EACH_CODEC(IBP_DECLARE)
#undef IBP_DECLARE

std::shared_ptr<GpuCodec> MakeGpuCodec(const char* name, const CodecParameters& parameters, const uint8_t* tables_dev,
                                       int64_t tables_bytes) {
#define IBP_MAKE(known) \
  if (std::strcmp(name, #known) == 0) return Make_gpu_##known##_codec(parameters, tables_dev, tables_bytes);
  IBP_FOR_EACH_CODEC(IBP_MAKE)
#undef IBP_MAKE
  Throw<ArgumentError>("codec: want one of core/codec_list.h, got '", name, "'");
}

}  // namespace ibp
