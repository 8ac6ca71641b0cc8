// The gather of codec "dict": a specialised decoder for float32 and bfloat16, and one for everything else.
#include "cuda/gather_kernel.cuh"

namespace ibp {
namespace {

template <int kWords>
struct alignas(4 * kWords) WordVector {
  uint32_t at[kWords];
};

// Values with 8-bit symbols below the sign, 3-bit codes and a low part of whole bytes: kValueBytes = 4 for float32 (24
// low bits), 2 for bfloat16 (8). A lane decodes kLaneBytes at a time, so rows are multiples of that; slots are
// multiples of 4. All offsets in a payload are known beforehand but those of the escaped symbols, which take a prefix
// sum.
template <int kValueBytes, int kLaneBytes, int kLanes_, int kLoads_>
struct FloatDictDecoder {
  using Codec = DeviceDictCodec;
  static constexpr int kLanes = kLanes_, kLoads = kLoads_;
  static constexpr int32_t kHeadBytes = 0;
  static constexpr int kValues = kLaneBytes / kValueBytes;  // a lane has at a time
  static constexpr int kLowBytes = kValueBytes - 1;
  static constexpr int kCodeBits = 3;
  static constexpr int kQuads = (kValues + 3) / 4;

  // Four 3-bit codes, each in a nibble, as __byte_perm wants them.
  __device__ static uint32_t Nibbles(uint32_t codes) {
    return (codes & 0x7) | ((codes << 1) & 0x70) | ((codes << 2) & 0x700) | ((codes << 3) & 0x7000);
  }

  // Symbols of up to four values, one in each byte; escaped ones are 0.
  __device__ static uint32_t Symbols(const Codec& codec, uint64_t shared_dictionary, uint32_t nibbles, int32_t column) {
    constexpr int kInQuad = kValues < 4 ? kValues : 4;
    if (!codec.layout.per_column) {
      return __byte_perm(static_cast<uint32_t>(shared_dictionary), static_cast<uint32_t>(shared_dictionary >> 32),
                         nibbles);
    }
    uint32_t symbols = 0;
#pragma unroll
    for (int k = 0; k < kInQuad; k += 2) {
      const ulonglong2 pair = __ldg(reinterpret_cast<const ulonglong2*>(codec.packed_dev + column + k));
      const uint32_t first =
          __byte_perm(static_cast<uint32_t>(pair.x), static_cast<uint32_t>(pair.x >> 32), (nibbles >> (4 * k)) & 7);
      const uint32_t second =
          __byte_perm(static_cast<uint32_t>(pair.y), static_cast<uint32_t>(pair.y >> 32), (nibbles >> (4 * k + 4)) & 7);
      symbols |= ((first & 0xff) | ((second & 0xff) << 8)) << (8 * k);
    }
    return symbols;
  }

  // [symbol][sign][mantissa] to [sign][symbol][mantissa].
  __device__ static uint32_t Arrange(uint32_t x) {
    if (kValueBytes == 4) return ((x >> 1) & 0x7f800000u) | (x & 0x007fffffu) | ((x << 8) & 0x80000000u);
    return ((x >> 1) & 0x7f807f80u) | (x & 0x007f007fu) | ((x << 8) & 0x80008000u);
  }

  // The lane's kValues values from their low bits, at `bytes`, and their symbols.
  __device__ static WordVector<kLaneBytes / 4> Assemble(const uint8_t* bytes, const uint32_t symbols[kQuads]) {
    constexpr int kLowWords = (kValues * kLowBytes + 3) / 4;
    const int misaligned = static_cast<int>(reinterpret_cast<uintptr_t>(bytes) % 4);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(bytes - misaligned);
    uint32_t low[kLowWords];
#pragma unroll
    for (int w = 0; w < kLowWords; ++w) low[w] = __funnelshift_r(words[w], words[w + 1], 8 * misaligned);
    WordVector<kLaneBytes / 4> x;
    if constexpr (kValueBytes == 2) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        x.at[2 * q] = Arrange(__byte_perm(low[q], symbols[q], 0x5140));
        x.at[2 * q + 1] = Arrange(__byte_perm(low[q], symbols[q], 0x7362));
      }
    } else {
      x.at[0] = Arrange(__byte_perm(low[0], symbols[0], 0x4210));
      x.at[1] = Arrange(__byte_perm(__funnelshift_r(low[0], low[1], 24), symbols[0], 0x5210));
      if constexpr (kValues == 4) {
        x.at[2] = Arrange(__byte_perm(__funnelshift_r(low[1], low[2], 16), symbols[0], 0x6210));
        x.at[3] = Arrange(__byte_perm(low[2] >> 8, symbols[0], 0x7210));
      }
    }
    return x;
  }

  __device__ static int32_t Decode(const Codec& codec, const GatherRequest& request, int32_t, const uint8_t* source,
                                   const FirstBytes& first, uint8_t* out, bool active, int lane) {
    const DictLayout& layout = codec.layout;
    const int32_t skew = static_cast<int32_t>(source - first.base);
    const uint32_t* codes = reinterpret_cast<const uint32_t*>(first.shared + skew);
    const uint8_t* low = first.shared + skew + layout.codes_bytes();
    const int32_t tail_byte = layout.codes_bytes() + layout.num_values * kLowBytes;
    const uint8_t* tail = first.shared + skew + tail_byte;
    const int32_t most_escapes = min(request.lead_bytes, PayloadLimit(request, layout.row_bytes)) - tail_byte;
    const uint64_t shared_dictionary = layout.per_column ? 0 : __ldg(codec.packed_dev);
    int32_t escapes_before = 0;
    for (int32_t base = 0; base < layout.num_values; base += kLanes * kValues) {
      const int32_t column = base + lane * kValues;
      // Where not even the low bits fit the slot, the window does not have them: read nothing, the row is damaged.
      const bool inside = active && most_escapes >= 0 && column < layout.num_values;
      uint32_t nibbles[kQuads] = {}, symbols[kQuads] = {}, escaped[kQuads] = {};
      int escapes = 0;
      if (inside) {
        const int32_t bit = column * kCodeBits;
        const uint32_t packed = __funnelshift_r(codes[bit / 32], codes[bit / 32 + 1], bit % 32);
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          nibbles[q] = Nibbles(packed >> (12 * q));
          if (kValues < 4) nibbles[q] &= LowMask<uint32_t>(4 * kValues);
          escaped[q] = nibbles[q] & (nibbles[q] >> 1) & (nibbles[q] >> 2) & 0x1111u;
          escapes += __popc(escaped[q]);
          symbols[q] = Symbols(codec, shared_dictionary, nibbles[q], column + 4 * q);
        }
      }
      if (__any_sync(kWholeWarp, escapes)) {
        int32_t rank = escapes;
#pragma unroll
        for (int distance = 1; distance < kLanes; distance *= 2) {
          const int32_t other = __shfl_up_sync(kWholeWarp, rank, distance, kLanes);
          if (lane >= distance) rank += other;
        }
        const int32_t all = __shfl_sync(kWholeWarp, rank, kLanes - 1, kLanes);
        int32_t at = escapes_before + rank - escapes;
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          for (uint32_t left = escaped[q]; left; left &= left - 1) {
            if (at < most_escapes) symbols[q] |= static_cast<uint32_t>(tail[at]) << (2 * (__ffs(left) - 1));
            ++at;
          }
        }
        escapes_before += all;
      }
      if (inside) {
        *reinterpret_cast<WordVector<kLaneBytes / 4>*>(out + column * kValueBytes) =
            Assemble(low + column * kLowBytes, symbols);
      }
    }
    return escapes_before > max(0, most_escapes) || most_escapes < 0 ? -1 : 0;
  }
};

// Any dictionary codec: one value a lane, the whole warp on a row.
template <typename Word>
struct AnyDictDecoder {
  using Codec = DeviceDictCodec;
  static constexpr int kLanes = kWarpSize, kLoads = 2;
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
                                   const uint8_t* source, const FirstBytes& first, uint8_t* out, bool, int lane) {
    const DictLayout& layout = codec.layout;
    const int code_bits = layout.code_bits, low_bits = layout.low_bits();
    const int zero = layout.zero_code ? layout.num_symbols() : -1;
    const int32_t skew = static_cast<int32_t>(source - first.base);
    const int32_t payload_limit = PayloadLimit(request, layout.row_bytes);
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
    const int32_t tail_byte = layout.codes_bytes() + layout.LowBytes(with_low);
    const int64_t payload_bytes = int64_t{tail_byte} + int64_t{escapes} * layout.symbol_bytes();
    if (payload_bytes > payload_limit) return -1;
    int32_t fetched = 0;
    const int32_t end = RoundUp(skew + static_cast<int32_t>(payload_bytes), kLoadBytes);
    bytes = first.shared;
    if (end > first.end) {
      fetched = end - first.end;
      if (end <= window_bytes) {
        for (int32_t at = first.end + lane * kLoadBytes; at < end; at += kWarpSize * kLoadBytes) {
          *reinterpret_cast<uint4*>(first.shared + at) = *reinterpret_cast<const uint4*>(first.base + at);
        }
        __syncwarp();
      } else {
        bytes = first.base;  // longer than the window: read in place
        fetched = end;
      }
    }
    const unsigned lanes_before = LowMask<uint32_t>(lane);
    int32_t lows_before = 0, escapes_before = 0;
    for (int32_t tile = 0; tile < layout.num_values; tile += kWarpSize) {
      const int32_t i = tile + lane;
      const bool inside = i < layout.num_values;
      const int code = inside ? static_cast<int>(ReadBits(bytes, 8 * skew + int64_t{i} * code_bits, code_bits)) : zero;
      const unsigned low_lanes = __ballot_sync(kWholeWarp, inside && code != zero);
      const unsigned escape_lanes = __ballot_sync(kWholeWarp, inside && code == layout.escape());
      if (inside) {
        Word value = 0;
        if (code != zero) {
          uint32_t symbol;
          if (code == layout.escape()) {
            const int32_t rank = escapes_before + __popc(escape_lanes & lanes_before);
            const int32_t byte = skew + tail_byte + rank * layout.symbol_bytes();
            symbol = bytes[byte] | (layout.symbol_bytes() == 2 ? static_cast<uint32_t>(bytes[byte + 1]) << 8 : 0);
            symbol &= LowMask<uint32_t>(layout.symbol_bits);
          } else {
            const int64_t column = layout.per_column ? int64_t{i} << code_bits : 0;
            symbol = __ldg(codec.dictionary_dev + column + code);
          }
          const int32_t rank = lows_before + __popc(low_lanes & lanes_before);
          const int64_t bit = 8 * int64_t{skew + layout.codes_bytes()} + int64_t{rank} * low_bits;
          const Word low = static_cast<Word>(ReadLow(bytes, bit, low_bits) << layout.trim_bits);
          value = Join(symbol, low, layout.symbol_bits, layout.sign_low);
        }
        StoreValue(out + static_cast<int64_t>(i) * sizeof(Word), value);
      }
      lows_before += __popc(low_lanes);
      escapes_before += __popc(escape_lanes);
    }
    return fetched;
  }
};

// Launches the decoder with the fewest lanes a row that has each row in one step and its payload in the first fetch;
// returns false if there is none.
template <int kValueBytes, int kLaneBytes>
bool LaunchFloat(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream) {
  const int32_t lanes_wanted = codec.layout.row_bytes / kLaneBytes;
  const int32_t longest = request.slot_bytes + kLoadBytes;
  auto fits = [&](int lanes, int loads) {
    return (lanes_wanted <= lanes || lanes == kWarpSize) && longest <= lanes * loads * kLoadBytes;
  };
  if (fits(8, 1)) {
    LaunchGatherKernel<FloatDictDecoder<kValueBytes, kLaneBytes, 8, 1>>(codec, request, stream);
  } else if (fits(16, 1)) {
    LaunchGatherKernel<FloatDictDecoder<kValueBytes, kLaneBytes, 16, 1>>(codec, request, stream);
  } else if (fits(32, 1)) {
    LaunchGatherKernel<FloatDictDecoder<kValueBytes, kLaneBytes, 32, 1>>(codec, request, stream);
  } else if (fits(32, 2)) {
    LaunchGatherKernel<FloatDictDecoder<kValueBytes, kLaneBytes, 32, 2>>(codec, request, stream);
  } else if (fits(32, 8)) {
    LaunchGatherKernel<FloatDictDecoder<kValueBytes, kLaneBytes, 32, 8>>(codec, request, stream);
  } else {
    return false;
  }
  return true;
}

template <int kValueBytes>
bool LaunchFloat(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream) {
  const DictLayout& layout = codec.layout;
  const bool serves = layout.value_bits == 8 * kValueBytes && layout.symbol_bits == 8 && layout.trim_bits == 0 &&
                      layout.code_bits == 3 && layout.sign_low && !layout.zero_code && codec.packed_dev != nullptr &&
                      request.slot_bytes % 4 == 0;
  if (!serves) return false;
  const uintptr_t alignment = reinterpret_cast<uintptr_t>(request.out_dev) | static_cast<uintptr_t>(layout.row_bytes);
  if (alignment % 16 == 0) return LaunchFloat<kValueBytes, 16>(codec, request, stream);
  if (alignment % 8 == 0) return LaunchFloat<kValueBytes, 8>(codec, request, stream);
  return false;
}

}  // namespace

void LaunchGather(const DeviceDictCodec& codec, const GatherRequest& request, cudaStream_t stream) {
  if (request.num_ids == 0) return;
  if (LaunchFloat<4>(codec, request, stream) || LaunchFloat<2>(codec, request, stream)) return;
  WithWord(codec.layout,
           [&](auto word) { LaunchGatherKernel<AnyDictDecoder<decltype(word)>>(codec, request, stream); });
}

}  // namespace ibp
