#include "cpu/row_codec.h"

#include <cstring>

#include "core/codec_list.h"
#include "core/codec_parameters.h"

namespace ibp {

#define IBP_DECLARE(name) std::unique_ptr<RowCodec> Make_##name##_codec(const CodecParameters&);
IBP_FOR_EACH_CODEC(IBP_DECLARE)
#undef IBP_DECLARE

std::unique_ptr<RowCodec> MakeCodec(const char* name, const CodecParameters& parameters) {
#define IBP_MAKE(known) \
  if (std::strcmp(name, #known) == 0) return Make_##known##_codec(parameters);
  IBP_FOR_EACH_CODEC(IBP_MAKE)
#undef IBP_MAKE
  Throw<ArgumentError>("codec: want one of core/codec_list.h, got '", name, "'");
}

}  // namespace ibp
