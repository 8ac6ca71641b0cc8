// Compiled with -mavx2 -mbmi2 -mpopcnt; called only after SelectCodePath has asked the CPU.
#include "cpu/avx2_bmi2.h"
#include "cpu/dict_row.h"
#include "cpu/dict_row_avx2.h"
#include "cpu/ibp_row.h"

namespace ibp {
namespace {

void StreamLines(uint8_t* to, const uint8_t* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(from + at)));
  }
  _mm_sfence();
}

}  // namespace

extern const CodePath kAvx2Path = {DictRowAvx2<Avx2Bmi2>::Ops(), IbpRow<Avx2Bmi2>::Ops(), &StreamLines, "avx2"};

}  // namespace ibp
