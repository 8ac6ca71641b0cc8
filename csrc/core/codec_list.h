// Every codec, by name. For each of them there is a cpu/NAME_codec.cc with Make_NAME_codec, a cuda/NAME_codec.cu with
// Make_gpu_NAME_codec, which CMakeLists.txt finds from this list, and a form in Python. docs/developing.md says what
// they do.
#pragma once

#define IBP_FOR_EACH_CODEC(CODEC) \
  CODEC(dict)                     \
  CODEC(ibp)
