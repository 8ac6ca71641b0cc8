// Compiled with -mavx2 -mbmi2 -mpopcnt; called only after SelectRowOps has asked the CPU.
#include <immintrin.h>

#include "cpu/row_ops_impl.h"

namespace ibp {
namespace {

struct Avx2Bmi2 {
  static int Count(uint64_t x) { return static_cast<int>(_mm_popcnt_u64(x)); }
  static uint64_t Extract(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
  static uint64_t Deposit(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
};

}  // namespace

extern const RowOps kAvx2RowOps = IbpRow<Avx2Bmi2>::Ops("avx2");

}  // namespace ibp
