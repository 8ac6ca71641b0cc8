// The layout of codec "dict" from parameters by name.
#pragma once

#include "core/codec_parameters.h"
#include "core/dict_layout.h"

namespace ibp {

inline DictLayout DictLayoutOf(const CodecParameters& parameters) {
  return MakeDictLayout(parameters.Number("num_values"), parameters.Number32("value_bits"),
                        parameters.Number32("symbol_bits"), parameters.Number32("trim_bits"),
                        parameters.Number32("code_bits"), parameters.Flag("sign_low"), parameters.Flag("zero_code"),
                        parameters.Flag("per_column"));
}

}  // namespace ibp
