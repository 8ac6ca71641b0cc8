#include <cstdlib>
#include <cstring>

#include "cpu/row_ops.h"

namespace ibp {
namespace {

bool CpuHasAvx2() {
#if defined(IBP_HAVE_AVX2)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
#else
  return false;
#endif
}

const RowOps& Fastest() {
#if defined(IBP_HAVE_AVX2)
  if (CpuHasAvx2()) return kAvx2RowOps;
#endif
  return kScalarRowOps;
}

}  // namespace

const RowOps& SelectRowOps() {
  static const RowOps& ops = []() -> const RowOps& {
    const char* forced = std::getenv("IBP_GNN_CPU");
    return forced && *forced ? RowOpsByName(forced) : Fastest();
  }();
  return ops;
}

const RowOps& RowOpsByName(const char* name) {
  if (std::strcmp(name, "auto") == 0) return Fastest();
  if (std::strcmp(name, "scalar") == 0) return kScalarRowOps;
#if defined(IBP_HAVE_AVX2)
  if (std::strcmp(name, "avx2") == 0 && CpuHasAvx2()) return kAvx2RowOps;
#endif
  Throw<ArgumentError>("cpu code path: want 'auto', 'scalar'", CpuHasAvx2() ? " or 'avx2'" : "", ", got '", name, "'");
}

}  // namespace ibp
