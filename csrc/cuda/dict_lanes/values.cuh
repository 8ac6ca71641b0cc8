// Values from their symbols and low bits, for each float type. core/dict_layout.h says what the two parts are: a float
// rotated left by one bit is [symbol][low bits], the sign lowest. A lane works on 16 bytes: kValues values in four
// words. `symbols` has a byte for each value, four to a word. A float type has
//   Word, kLowBits, kTrimBits, kSymbolBits, kValues
//   kSpread                     words of low bits that are laid out as Join takes them
//   Spread(low, spread)         lays out low bits that follow one another
//   SpreadPresent(low, present, spread)
//                               the same where only some values have low bits; bit 4k of `present`: value k has. The
//                               others get 0
//   Join(spread, symbols, w)    word w of the 16 bytes, of values rotated left
//   Rotate(word, by)            its values rotated right by `by` bits, which is 0 or 1
#pragma once

#include <type_traits>

#include "cuda/dict_lanes/bits.cuh"

namespace ibp {

// The low bits of a lane's values, from the first one's lowest bit on.
template <typename Float>
struct LowBits {
  static constexpr int kWords = (Float::kValues * Float::kLowBits + 31) / 32;
  uint32_t words[kWords];

  // Takes the lowest bits away, at most 32.
  __device__ __forceinline__ void Drop(int bits) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = __funnelshift_rc(words[w], w + 1 < kWords ? words[w + 1] : 0, bits);
  }
};

// What the float types share.
template <typename Word_, int kLowBits_, int kSpread_, int kTrimBits_ = 0>
struct FloatType {
  using Word = Word_;
  static constexpr int kLowBits = kLowBits_, kTrimBits = kTrimBits_, kSpread = kSpread_;
  static constexpr int kSymbolBits = 8 * sizeof(Word) - kLowBits - kTrimBits;
  static constexpr int kValues = 16 / sizeof(Word);
  static_assert(kSymbolBits <= 8, "a symbol is a byte");
};

// Spread: a word a value. Its lowest 24 bits count; Join puts the symbol in the place of the others.
struct Float32 : FloatType<uint32_t, 24, 4> {
  __device__ __forceinline__ static void Spread(const LowBits<Float32>& low, uint32_t (&spread)[kSpread]) {
    spread[0] = low.words[0];
    spread[1] = __funnelshift_r(low.words[0], low.words[1], 24);
    spread[2] = __funnelshift_r(low.words[1], low.words[2], 16);
    spread[3] = low.words[2] >> 8;
  }
  __device__ __forceinline__ static void SpreadPresent(LowBits<Float32> low, uint32_t present,
                                                       uint32_t (&spread)[kSpread]) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const uint32_t has = (present >> (4 * v)) & 1;
      spread[v] = has ? low.words[0] : 0;
      low.Drop(24 * has);
    }
  }
  __device__ __forceinline__ static uint32_t Join(const uint32_t (&spread)[kSpread], const uint32_t (&symbols)[1],
                                                  int w) {
    return __byte_perm(spread[w], symbols[0], 0x4210 + (w << 12));  // byte w of the symbols on top
  }
  __device__ __forceinline__ static uint32_t Rotate(uint32_t word, int by) { return __funnelshift_r(word, word, by); }
};

// Spread: a byte a value.
struct Bfloat16 : FloatType<uint16_t, 8, 2> {
  __device__ __forceinline__ static void Spread(const LowBits<Bfloat16>& low, uint32_t (&spread)[kSpread]) {
    spread[0] = low.words[0];
    spread[1] = low.words[1];
  }
  __device__ __forceinline__ static void SpreadPresent(LowBits<Bfloat16> low, uint32_t present,
                                                       uint32_t (&spread)[kSpread]) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint32_t of_quad = (present >> (16 * q)) & 0xffffu;
      spread[q] = ToSet(low.words[0], of_quad);
      low.Drop(8 * __popc(of_quad));
    }
  }
  __device__ __forceinline__ static uint32_t Join(const uint32_t (&spread)[kSpread], const uint32_t (&symbols)[2],
                                                  int w) {
    return __byte_perm(spread[w / 2], symbols[w / 2], w % 2 ? 0x7362 : 0x5140);  // low, symbol, low, symbol
  }
  __device__ __forceinline__ static uint32_t Rotate(uint32_t word, int by) { return by ? RotateHalves(word) : word; }
};

// Spread: 16 bits a value, of which the upper 5 are 0.
struct Float16 : FloatType<uint16_t, 11, 4> {
  __device__ __forceinline__ static void Spread(const LowBits<Float16>& low, uint32_t (&spread)[kSpread]) {
    const uint32_t pairs[4] = {low.words[0], __funnelshift_r(low.words[0], low.words[1], 22),
                               __funnelshift_r(low.words[1], low.words[2], 12), low.words[2] >> 2};
#pragma unroll
    for (int p = 0; p < 4; ++p) spread[p] = (pairs[p] & 0x7ffu) | ((pairs[p] << 5) & 0x07ff0000u);
  }
  __device__ __forceinline__ static void SpreadPresent(LowBits<Float16> low, uint32_t present,
                                                       uint32_t (&spread)[kSpread]) {
    uint32_t values[8];
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      const uint32_t has = (present >> (4 * v)) & 1;
      values[v] = has ? low.words[0] & 0x7ffu : 0;
      low.Drop(11 * has);
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) spread[p] = values[2 * p] | (values[2 * p + 1] << 16);
  }
  __device__ __forceinline__ static uint32_t Join(const uint32_t (&spread)[kSpread], const uint32_t (&symbols)[2],
                                                  int w) {
    // Symbols are 5 bits in a byte: they move to bits 11 to 15 of each half, above the low bits.
    return spread[w] | (__byte_perm(symbols[w / 2], 0, w % 2 ? 0x4342 : 0x4140) << 11);
  }
  __device__ __forceinline__ static uint32_t Rotate(uint32_t word, int by) { return by ? RotateHalves(word) : word; }
};

template <typename Float>
__device__ __forceinline__ uint4 JoinValues(const uint32_t (&spread)[Float::kSpread],
                                            const uint32_t (&symbols)[Float::kValues / 4], int rotate) {
  uint32_t x[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) x[w] = Float::Rotate(Float::Join(spread, symbols, w), rotate);
  return make_uint4(x[0], x[1], x[2], x[3]);
}

// Where every value has low bits. They start at `low_bytes` in shared memory, `misaligned` bytes after a multiple of 4.
// Reads 4 * kWords bytes from there, rounded up to a whole word.
template <typename Float>
__device__ __forceinline__ uint4 AssembleValues(const uint8_t* low_bytes, int misaligned,
                                                const uint32_t (&symbols)[Float::kValues / 4]) {
  constexpr int kWords = LowBits<Float>::kWords;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(low_bytes - misaligned);
  LowBits<Float> low;
#pragma unroll
  for (int w = 0; w < kWords; ++w) low.words[w] = words[w];
  if (misaligned) {
    const uint32_t last = words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      low.words[w] = __funnelshift_r(low.words[w], w + 1 < kWords ? low.words[w + 1] : last, 8 * misaligned);
    }
  }
  uint32_t spread[Float::kSpread];
  Float::Spread(low, spread);
  return JoinValues<Float>(spread, symbols, 1);
}

// Where only the values in `present` have low bits (bit 4k: value k). These start at bit `bit` (below 32) of `words` in
// shared memory. The symbols of the others are 0, and so are they. Reads 4 * (kWords + 1) bytes.
template <typename Float>
__device__ __forceinline__ uint4 AssemblePresent(const uint32_t* words, int bit, uint32_t present, bool sign_low,
                                                 const uint32_t (&symbols)[Float::kValues / 4]) {
  LowBits<Float> low;
#pragma unroll
  for (int w = 0; w < LowBits<Float>::kWords; ++w) low.words[w] = __funnelshift_r(words[w], words[w + 1], bit);
  uint32_t spread[Float::kSpread];
  Float::SpreadPresent(low, present, spread);
  return JoinValues<Float>(spread, symbols, sign_low);
}

}  // namespace ibp
