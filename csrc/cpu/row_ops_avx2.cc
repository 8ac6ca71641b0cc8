// Compiled with -mavx2 -mbmi2 -mpopcnt; called only after SelectCodePath has asked the CPU.
#include <immintrin.h>

#include "cpu/dict_row.h"
#include "cpu/dict_row_avx2.h"
#include "cpu/ibp_row.h"

namespace ibp {
namespace {

struct Avx2Bmi2 {
  static int Count(uint64_t x) { return static_cast<int>(_mm_popcnt_u64(x)); }
  static int TrailingZeros(uint64_t x) { return __builtin_ctzll(x); }
  static uint64_t Extract(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
  static uint64_t Deposit(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
};

}  // namespace

extern const CodePath kAvx2Path = {{IbpRow<Avx2Bmi2>::Ops(), DictRowAvx2<Avx2Bmi2>::Ops()}, "avx2"};

}  // namespace ibp
