#include "cpu/dict_row.h"
#include "cpu/ibp_row.h"

namespace ibp {
namespace {

// Moves run after run of ones; masks of real data have one to three runs.
struct Scalar {
  static int Count(uint64_t x) {
    x -= (x >> 1) & 0x5555555555555555ull;
    x = (x & 0x3333333333333333ull) + ((x >> 2) & 0x3333333333333333ull);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
    return static_cast<int>((x * 0x0101010101010101ull) >> 56);
  }
  static int TrailingZeros(uint64_t x) { return __builtin_ctzll(x); }
  static int RunLength(uint64_t x) { return ~x ? __builtin_ctzll(~x) : 64; }
  static uint64_t Extract(uint64_t x, uint64_t mask) {
    uint64_t out = 0;
    for (int filled = 0; mask;) {
      const int start = __builtin_ctzll(mask);
      const int length = RunLength(mask >> start);
      out |= ((x >> start) & LowMask<uint64_t>(length)) << filled;
      filled += length;
      mask &= ~(LowMask<uint64_t>(length) << start);
    }
    return out;
  }
  static uint64_t Deposit(uint64_t x, uint64_t mask) {
    uint64_t out = 0;
    for (int taken = 0; mask;) {
      const int start = __builtin_ctzll(mask);
      const int length = RunLength(mask >> start);
      out |= ((x >> taken) & LowMask<uint64_t>(length)) << start;
      taken += length;
      mask &= ~(LowMask<uint64_t>(length) << start);
    }
    return out;
  }
};

void StreamLines(uint8_t* to, const uint8_t* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));  // through the caches: there is no portable way around them
}

}  // namespace

extern const CodePath kScalarPath = {DictRow<Scalar>::Ops(), IbpRow<Scalar>::Ops(), &StreamLines, "scalar"};

}  // namespace ibp
