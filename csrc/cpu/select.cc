#include <cstdlib>
#include <cstring>

#include "core/check.h"
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

bool CpuHasAvx512() {
#if defined(IBP_HAVE_AVX2)
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2");
#else
  return false;
#endif
}

const CodePath& Fastest() {
#if defined(IBP_HAVE_AVX2)
  if (CpuHasAvx512()) return kAvx512Path;
  if (CpuHasAvx2()) return kAvx2Path;
#endif
  return kScalarPath;
}

}  // namespace

const CodePath& SelectCodePath() {
  static const CodePath& path = []() -> const CodePath& {
    const char* forced = std::getenv("IBP_GNN_CPU");
    return forced && *forced ? CodePathByName(forced) : Fastest();
  }();
  return path;
}

const CodePath& CodePathByName(const char* name) {
  if (std::strcmp(name, "auto") == 0) return Fastest();
  if (std::strcmp(name, "scalar") == 0) return kScalarPath;
#if defined(IBP_HAVE_AVX2)
  if (std::strcmp(name, "avx2") == 0 && CpuHasAvx2()) return kAvx2Path;
  if (std::strcmp(name, "avx512") == 0 && CpuHasAvx512()) return kAvx512Path;
#endif
  Throw<ArgumentError>("cpu code path: want 'auto', 'scalar'", CpuHasAvx2() ? ", 'avx2'" : "",
                       CpuHasAvx512() ? ", 'avx512'" : "", ", got '", name, "'");
}

}  // namespace ibp
