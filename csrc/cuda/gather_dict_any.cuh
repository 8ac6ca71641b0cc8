// Decodes a payload of codec "dict" of any form: the general kernel's decoder, and what decides whether a payload is
// damaged.
#pragma once

#include "cuda/gather_kernel.cuh"

namespace ibp {

// Any dictionary codec: one value a lane, the whole warp on a row.
template <typename Word>
struct AnyDictDecoder {
  using Codec = DeviceDictCodec;
  static constexpr int kLoads = 2;
  static constexpr int32_t kHeadBytes = 0;

  // `count` bits (at most 32) from bit `bit` on; the address is a multiple of 4, in shared memory or not.
  __device__ static uint32_t ReadBits(const uint8_t* bytes, int64_t bit, int count) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(bytes) + bit / 32;
    return __funnelshift_r(words[0], words[1], static_cast<uint32_t>(bit % 32)) & LowMask<uint32_t>(count);
  }
  __device__ static Word ReadLow(const uint8_t* bytes, int64_t bit, int count) {
    if constexpr (sizeof(Word) == 8) {
      const uint64_t high = count > 32 ? ReadBits(bytes, bit + 32, count - 32) : 0;
      return ReadBits(bytes, bit, count < 32 ? count : 32) | (high << 32);
    }
    return static_cast<Word>(ReadBits(bytes, bit, count));
  }
  __device__ static void StoreValue(uint8_t* out, Word value) {
    if (reinterpret_cast<uintptr_t>(out) % sizeof(Word) == 0) {
      *reinterpret_cast<Word*>(out) = value;
    } else {
      for (int b = 0; b < static_cast<int>(sizeof(Word)); ++b) out[b] = static_cast<uint8_t>(value >> (8 * b));
    }
  }

  __device__ static int32_t Decode(const Codec& codec, const GatherRequest& request, int32_t window_bytes,
                                   const uint8_t* source, const FirstBytes& first, uint8_t* out, int lane) {
    const DictLayout& layout = codec.layout;
    const int code_bits = layout.code_bits, low_bits = layout.low_bits();
    const int zero = layout.zero_code ? layout.num_symbols() : -1;
    const int32_t skew = static_cast<int32_t>(source - first.base);
    const int32_t payload_limit = first.payload_limit;
    if (layout.codes_bytes() > payload_limit) return -1;
    // The planes' lengths, from the codes.
    const uint8_t* bytes = skew + layout.codes_bytes() <= first.end ? first.shared : first.base;
    int32_t escapes = 0, with_low = 0;
    for (int32_t i = lane; i < layout.num_values; i += kWarpSize) {
      const int code = static_cast<int>(ReadBits(bytes, 8 * skew + int64_t{i} * code_bits, code_bits));
      escapes += code == layout.escape();
      with_low += code != zero;
    }
    escapes = WarpSum(escapes);
    with_low = WarpSum(with_low);
    const int32_t escape_byte = layout.codes_bytes() + layout.LowBytes(with_low);
    const int32_t plain_byte = escape_byte + layout.EscapeBytes(escapes);
    if (plain_byte > payload_limit) return -1;
    // How many plain symbols there are, only the escape codes say.
    int32_t fetched = 0, have = first.end;
    bytes = first.shared;
    auto fetch_up_to = [&](int32_t payload_bytes) {
      const int32_t end = RoundUp(skew + payload_bytes, kLoadBytes);
      if (end <= have || bytes == first.base) return;
      __syncwarp();  // whole words were read, beyond what was there, too
      if (end <= window_bytes) {
        for (int32_t at = have + lane * kLoadBytes; at < end; at += kWarpSize * kLoadBytes) {
          *reinterpret_cast<uint4*>(first.shared + at) = *reinterpret_cast<const uint4*>(first.base + at);
        }
        __syncwarp();
        fetched += end - have;
      } else {
        bytes = first.base;  // longer than the window: read in place
        fetched += end;
      }
      have = end;
    };
    fetch_up_to(plain_byte);
    const int64_t escape_bit = 8 * int64_t{skew + escape_byte};
    int32_t plain_symbols = 0;
    for (int32_t i = lane; i < escapes; i += kWarpSize) {
      plain_symbols += ReadBits(bytes, escape_bit + int64_t{i} * kEscapeCodeBits, kEscapeCodeBits) == kPlainSymbol;
    }
    plain_symbols = WarpSum(plain_symbols);
    const int64_t payload_bytes = int64_t{plain_byte} + int64_t{plain_symbols} * layout.symbol_bytes();
    if (payload_bytes > payload_limit) return -1;
    fetch_up_to(static_cast<int32_t>(payload_bytes));
    const unsigned lanes_before = LowMask<uint32_t>(lane);
    int32_t lows_before = 0, escapes_before = 0, plain_before = 0;
    for (int32_t tile = 0; tile < layout.num_values; tile += kWarpSize) {
      const int32_t i = tile + lane;
      const bool inside = i < layout.num_values;
      const int code = inside ? static_cast<int>(ReadBits(bytes, 8 * skew + int64_t{i} * code_bits, code_bits)) : zero;
      const unsigned low_lanes = __ballot_sync(kWholeWarp, inside && code != zero);
      const unsigned escape_lanes = __ballot_sync(kWholeWarp, inside && code == layout.escape());
      uint32_t escape_code = 0;
      if (escape_lanes >> lane & 1) {
        const int32_t rank = escapes_before + __popc(escape_lanes & lanes_before);
        escape_code = ReadBits(bytes, escape_bit + int64_t{rank} * kEscapeCodeBits, kEscapeCodeBits);
      }
      const unsigned plain_lanes = __ballot_sync(kWholeWarp, escape_code == kPlainSymbol);
      if (inside) {
        Word value = 0;
        if (code != zero) {
          uint32_t symbol;
          if (escape_code == kPlainSymbol) {
            const int32_t rank = plain_before + __popc(plain_lanes & lanes_before);
            const int32_t byte = skew + plain_byte + rank * layout.symbol_bytes();
            symbol = bytes[byte] | (layout.symbol_bytes() == 2 ? static_cast<uint32_t>(bytes[byte + 1]) << 8 : 0);
            symbol &= LowMask<uint32_t>(layout.symbol_bits);
          } else if (code == layout.escape()) {
            symbol = codec.escape_dictionary[escape_code];
          } else {
            const int64_t column = layout.per_column ? int64_t{i} << code_bits : 0;
            symbol = __ldg(codec.dictionary_dev + column + code);
          }
          const int32_t rank = lows_before + __popc(low_lanes & lanes_before);
          const int64_t bit = 8 * int64_t{skew + layout.codes_bytes()} + int64_t{rank} * low_bits;
          value = Join(symbol, ReadLow(bytes, bit, low_bits), layout);
        }
        StoreValue(out + static_cast<int64_t>(i) * sizeof(Word), value);
      }
      lows_before += __popc(low_lanes);
      escapes_before += __popc(escape_lanes);
      plain_before += __popc(plain_lanes);
    }
    return fetched;
  }
};

// A payload where it lies in memory, whatever its length, by the whole warp. Returns whether it is one; if not, the row
// is unspecified. For the few payloads that another decoder cannot take. (As a function of its own it would cost that
// one 3 to 8 % of its speed: what lives across a call takes registers from everything else.)
template <typename Word>
__device__ __forceinline__ bool DecodeInPlace(const DeviceDictCodec& codec, const GatherRequest& request,
                                              const uint8_t* source, int32_t payload_limit, uint8_t* out) {
  FirstBytes nothing;
  nothing.payload_limit = payload_limit;
  nothing.base = source - reinterpret_cast<uintptr_t>(source) % kLoadBytes;
  return AnyDictDecoder<Word>::Decode(codec, request, 0, source, nothing, out, threadIdx.x % kWarpSize) >= 0;
}

}  // namespace ibp
