// Bit operations of CPUs with AVX2, BMI2 and POPCNT, for the row operations that are written once for every CPU.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ibp {
namespace {

struct Avx2Bmi2 {
  static int Count(uint64_t x) { return static_cast<int>(_mm_popcnt_u64(x)); }
  static int TrailingZeros(uint64_t x) { return __builtin_ctzll(x); }
  static uint64_t Extract(uint64_t x, uint64_t mask) { return _pext_u64(x, mask); }
  static uint64_t Deposit(uint64_t x, uint64_t mask) { return _pdep_u64(x, mask); }
};

}  // namespace
}  // namespace ibp
