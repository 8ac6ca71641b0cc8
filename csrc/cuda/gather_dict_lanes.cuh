// The gather of codec "dict" for its usual forms: codes of 2 or 3 bits, symbols of at most 8 bits, nothing trimmed.
// Where every value has low bits, offsets in a payload are known beforehand but those of what is escaped. With a zero
// code they follow from how many values before have low bits, and escapes from how many of the row have.
//
// A lane decodes 16 bytes of a row at a time, kLanes lanes share a row, and a warp works on a tile of kRows rows for
// each of its groups of lanes, kSteps steps of each. What makes it fast is that a row costs few instructions: the rows
// of a batch are looked up at once, one a lane, and listed in shared memory; the prefix sums of the escapes of all
// kRows * kSteps units of a tile share one word; and whatever is not a payload is dealt with after the batch. Payloads
// of the next tile are on their way into registers while this one is decoded.
#pragma once

#include <optional>
#include <type_traits>

#include "cuda/gather_dict_any.cuh"

namespace ibp {

constexpr int32_t kSectorBytes = 32;  // of memory; loads fetch whole ones

template <int kValueBytes_, int kLowBits_, int kCodeBits_, int kLanes_, int kRows_, int kSteps_, int kLoads_,
          bool kPerColumn_, bool kWhole_, bool kZeroCode_>
struct DictLanes {
  static constexpr int kValueBytes = kValueBytes_, kLowBits = kLowBits_, kCodeBits = kCodeBits_, kLanes = kLanes_;
  using Word = std::conditional_t<kValueBytes == 4, uint32_t, uint16_t>;
  static constexpr int kRows = kRows_, kSteps = kSteps_, kUnits = kRows * kSteps;
  static constexpr int kLoads = kLoads_;  // 16-byte loads of a lane that bring the first bytes of a payload
  static constexpr bool kPerColumn = kPerColumn_;
  // Rows are multiples of 16 bytes and start at one, and low bits start at a multiple of 4 bytes.
  static constexpr bool kWhole = kWhole_;
  static constexpr bool kZeroCode = kZeroCode_;
  static constexpr int kSymbolBits = 8 * kValueBytes - kLowBits;
  static constexpr int kValues = kLoadBytes / kValueBytes, kQuads = kValues / 4;
  static constexpr int kGroups = kWarpSize / kLanes, kTileRows = kRows * kGroups;
  static constexpr int kStepValues = kLanes * kValues;
  static constexpr int32_t kFetchBytes = kLanes * kLoads * kLoadBytes;
  static constexpr bool kLongRows = kSteps == 4;  // take several tiles; of their payloads any number of bytes
  static constexpr bool kManySteps = kSteps > 2;  // of which a row may need fewer
  // Two with 128 registers a thread or three with 80: of 768 values the first is 4 to 10 % faster, of 128 float32 the
  // second by 5 %.
  static constexpr int kBlocksPerMultiprocessor = kManySteps || kZeroCode ? 2 : 3;
  // Where several loads bring a payload, none of them should share a memory sector with the next one.
  static constexpr int32_t kBaseAlign = kLoads > 1 ? kSectorBytes : kLoadBytes;
};

// A count for each unit of a tile, several to a word; all values of a unit may count.
template <typename Lanes>
struct UnitCounts {
  static constexpr int kFieldBits = Lanes::kStepValues < 256 ? 8 : 16;
  static constexpr int kFieldsPerWord = 32 / kFieldBits, kWords = (Lanes::kUnits + kFieldsPerWord - 1) / kFieldsPerWord;

  uint32_t words[kWords] = {};

  __device__ __forceinline__ void Add(int unit, uint32_t count) {
    words[unit / kFieldsPerWord] += count << (unit % kFieldsPerWord * kFieldBits);
  }
  __device__ __forceinline__ int32_t Of(int unit) const {
    return (words[unit / kFieldsPerWord] >> (unit % kFieldsPerWord * kFieldBits)) & LowMask<uint32_t>(kFieldBits);
  }
  // Makes these the sums of the row's lanes before this one; returns those of all its lanes. Called by whole warps.
  __device__ __forceinline__ UnitCounts SumLanes(int group_lane) {
    UnitCounts totals;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      uint32_t sum = words[w];
#pragma unroll
      for (int distance = 1; distance < Lanes::kLanes; distance *= 2) {
        const uint32_t other = __shfl_up_sync(kWholeWarp, sum, distance, Lanes::kLanes);
        if (group_lane >= distance) sum += other;
      }
      totals.words[w] = __shfl_sync(kWholeWarp, sum, Lanes::kLanes - 1, Lanes::kLanes);
      words[w] = sum - words[w];
    }
    return totals;
  }
};

// A row of a batch. Its payload starts `skew` bytes after `base`, a kBaseAlign boundary; [0, end) from there is
// fetched. end is 0 for what is no payload.
struct alignas(16) RowEntry {
  const uint8_t* base;
  uint32_t position;  // in the output
  uint16_t end;
  uint8_t skew;
  uint8_t lane;  // that looked it up; kLongFlag is added when the payload turns out to be longer than what is fetched
};

constexpr uint8_t kLongFlag = 0x80;

// Lanes without a value, and long or damaged rows, read what happens to lie behind their window: this much at most.
constexpr int32_t kReadAheadBytes = 1024;

// From global memory, which the compiler cannot know of an address that it reads from shared memory.
__device__ __forceinline__ uint4 LoadGlobal(const uint8_t* address) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(address));
  return x;
}

// The same, but the compiler does not compute it anew wherever it is used, for which it would take many instructions.
__device__ __forceinline__ uint32_t KeepInRegister(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ __forceinline__ uint8_t* KeepInRegister(uint8_t* shared) {
  const uint32_t address = KeepInRegister(static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
  return static_cast<uint8_t*>(__cvta_shared_to_generic(address));
}

// Four codes, each in a nibble, as __byte_perm wants them.
template <int kCodeBits>
__device__ __forceinline__ uint32_t CodeNibbles(uint32_t codes) {
  if constexpr (kCodeBits == 3) {
    return (codes & 0x7) | ((codes << 1) & 0x70) | ((codes << 2) & 0x700) | ((codes << 3) & 0x7000);
  } else {
    return (codes & 0x3) | ((codes << 2) & 0x30) | ((codes << 4) & 0x300) | ((codes << 6) & 0x3000);
  }
}

// The lowest bits of those nibbles of which the kCodeBits lowest bits are all 1.
template <int kCodeBits>
__device__ __forceinline__ uint32_t FullNibbles(uint32_t nibbles) {
  const uint32_t two = nibbles & (nibbles >> 1);
  return (kCodeBits == 3 ? two & (nibbles >> 2) : two) & 0x11111111u;
}

// The lowest bits of those nibbles that are the zero code, which is one less than the escape.
template <int kCodeBits>
__device__ __forceinline__ uint32_t ZeroNibbles(uint32_t nibbles) {
  const uint32_t high = kCodeBits == 3 ? (nibbles >> 2) & (nibbles >> 1) : nibbles >> 1;
  return high & ~nibbles & 0x1111u;
}

// The zero code, as often as it fits 32 bits.
template <int kCodeBits>
__host__ __device__ constexpr uint32_t ZeroCodes() {
  uint32_t codes = 0;
  for (int bit = 0; bit < 32; bit += kCodeBits) codes |= ((1u << kCodeBits) - 2) << bit;
  return codes;
}

// Bytes of `in_order` to the bytes of the values that `escaped` has the lowest bits of the nibbles of, the first byte
// to the first of them and so on; the others get 0.
__device__ __forceinline__ uint32_t ToEscaped(uint32_t in_order, uint32_t escaped) {
  const uint32_t before = escaped * 0x1110u;  // in every nibble, how many values before it are escaped
  return __byte_perm(in_order, 0, (before & 0x3333u) | ((~escaped & 0x1111u) << 2));
}

// Two 16-bit values rotated right by one bit.
__device__ __forceinline__ uint32_t RotateHalves(uint32_t x) {
  return ((x >> 1) & 0x7fff7fffu) | ((x << 15) & 0x80008000u);
}

// 16 bytes of values from their low bits, which start `misaligned` bytes after a multiple of 4 in shared memory, and
// their symbols, a byte each.
template <typename Lanes>
__device__ __forceinline__ uint4 AssembleValues(const uint8_t* low_bytes, int misaligned,
                                                const uint32_t (&symbols)[Lanes::kQuads]) {
  constexpr int kWords = (Lanes::kValues * Lanes::kLowBits + 31) / 32;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(low_bytes - misaligned);
  uint32_t low[kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) low[w] = words[w];
  if (misaligned) {
    const uint32_t last = words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      low[w] = __funnelshift_r(low[w], w + 1 < kWords ? low[w + 1] : last, 8 * misaligned);
    }
  }
  if constexpr (Lanes::kLowBits == 24) {
    const uint32_t x[4] = {__byte_perm(low[0], symbols[0], 0x4210),
                           __byte_perm(__funnelshift_r(low[0], low[1], 24), symbols[0], 0x5210),
                           __byte_perm(__funnelshift_r(low[1], low[2], 16), symbols[0], 0x6210),
                           __byte_perm(low[2] >> 8, symbols[0], 0x7210)};
    return make_uint4(__funnelshift_r(x[0], x[0], 1), __funnelshift_r(x[1], x[1], 1), __funnelshift_r(x[2], x[2], 1),
                      __funnelshift_r(x[3], x[3], 1));
  } else if constexpr (Lanes::kLowBits == 8) {
    return make_uint4(
        RotateHalves(__byte_perm(low[0], symbols[0], 0x5140)), RotateHalves(__byte_perm(low[0], symbols[0], 0x7362)),
        RotateHalves(__byte_perm(low[1], symbols[1], 0x5140)), RotateHalves(__byte_perm(low[1], symbols[1], 0x7362)));
  } else {
    static_assert(Lanes::kLowBits == 11 && Lanes::kValueBytes == 2, "float32, bfloat16 or float16");
    uint32_t pairs[4] = {low[0], __funnelshift_r(low[0], low[1], 22), __funnelshift_r(low[1], low[2], 12), low[2] >> 2};
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const uint32_t both = (pairs[p] & 0x7ffu) | ((pairs[p] << 5) & 0x07ff0000u);
      const uint32_t high = __byte_perm(symbols[p / 2], 0, p % 2 ? 0x4342 : 0x4140);
      pairs[p] = RotateHalves(both | (high << 11));
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// The same where only some values have low bits, those that `with_low` has the lowest bits of the nibbles of, which lie
// one after the other from bit `bit` (below 32) of these words in shared memory on. The others are 0, as their symbols.
template <typename Lanes>
__device__ __forceinline__ uint4 AssemblePresent(const uint32_t* words, int bit, uint32_t with_low, bool sign_low,
                                                 const uint32_t (&symbols)[Lanes::kQuads]) {
  constexpr int kWords = (Lanes::kValues * Lanes::kLowBits + 31) / 32;
  uint32_t low[kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) low[w] = __funnelshift_r(words[w], words[w + 1], bit);
  auto drop = [&](int bits) {  // of the lowest ones, at most 32
#pragma unroll
    for (int w = 0; w < kWords; ++w) low[w] = __funnelshift_rc(low[w], w + 1 < kWords ? low[w + 1] : 0, bits);
  };
  uint32_t x[4];
  if constexpr (Lanes::kLowBits == 24) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const uint32_t present = (with_low >> (4 * v)) & 1;
      x[v] = __byte_perm(present ? low[0] : 0, symbols[0], 0x4210 + (v << 12));
      drop(24 * present);
      x[v] = __funnelshift_r(x[v], x[v], sign_low);
    }
  } else {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const uint32_t of_quad = (with_low >> (16 * q)) & 0xffffu;
      if constexpr (Lanes::kLowBits == 8) {
        const uint32_t bytes = ToEscaped(low[0], of_quad);
        drop(8 * __popc(of_quad));
        x[2 * q] = __byte_perm(bytes, symbols[q], 0x5140);
        x[2 * q + 1] = __byte_perm(bytes, symbols[q], 0x7362);
      } else {
        static_assert(Lanes::kLowBits == 11 && Lanes::kValueBytes == 2, "float32, bfloat16 or float16");
        uint32_t values[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const uint32_t present = (of_quad >> (4 * v)) & 1;
          values[v] = present ? low[0] & 0x7ffu : 0;
          drop(11 * present);
        }
        x[2 * q] = (values[0] | (values[1] << 16)) | (__byte_perm(symbols[q], 0, 0x4140) << 11);
        x[2 * q + 1] = (values[2] | (values[3] << 16)) | (__byte_perm(symbols[q], 0, 0x4342) << 11);
      }
    }
    if (sign_low) {
#pragma unroll
      for (int p = 0; p < 4; ++p) x[p] = RotateHalves(x[p]);
    }
  }
  return make_uint4(x[0], x[1], x[2], x[3]);
}

// Stores the first `count` values of x, at an address that is a multiple of `alignment`.
template <typename Lanes>
__device__ __forceinline__ void StoreValues(uint8_t* out, const uint4& x, int count, uint32_t alignment) {
  if (Lanes::kWhole) {
    __stcs(reinterpret_cast<uint4*>(out), x);  // not kept in the L2 cache: 3 % faster from 256 x float32 on
  } else if (count >= Lanes::kValues && alignment % 8 == 0) {
    *reinterpret_cast<uint2*>(out) = make_uint2(x.x, x.y);
    *reinterpret_cast<uint2*>(out + 8) = make_uint2(x.z, x.w);
  } else {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int half = 0; half < 8; ++half) {
      const uint32_t x16 = words[half / 2] >> (half % 2 * 16);
      if (half * 2 < count * Lanes::kValueBytes)
        *reinterpret_cast<uint16_t*>(out + half * 2) = static_cast<uint16_t>(x16);
    }
  }
}

// Shared memory of a block: per-column dictionaries, then for every warp its list and its windows, then slack.
template <typename Lanes>
struct DictShared {
  static constexpr int32_t kListBytes = kWarpSize * static_cast<int32_t>(sizeof(RowEntry));
  static constexpr int32_t kWindowStride = Lanes::kFetchBytes + kWindowSlackBytes;  // but for long rows
  int32_t dictionary_bytes, warp_bytes;

  __host__ __device__ DictShared(const DictLayout& layout, int32_t window_bytes) {
    const int32_t steps = (layout.num_values + Lanes::kStepValues - 1) / Lanes::kStepValues;
    dictionary_bytes = Lanes::kPerColumn ? steps * Lanes::kStepValues * 8 : 0;
    const int32_t stride = Lanes::kLongRows ? window_bytes + kWindowSlackBytes : kWindowStride;
    warp_bytes = kListBytes + Lanes::kTileRows * stride;
  }
  __host__ __device__ size_t block_bytes() const {
    return size_t(dictionary_bytes) + size_t(kWarpsPerBlock) * warp_bytes + kReadAheadBytes;
  }
};

// Per-column dictionaries as the lanes read them: of each pair of values of a step, 16 bytes lane by lane.
template <typename Lanes>
__device__ inline void LoadDictionaries(const DeviceDictCodec& codec, uint64_t* shared, int32_t entries) {
  for (int32_t i = threadIdx.x; i < entries; i += kThreads) {
    const int32_t pair = i / 2 % (Lanes::kStepValues / 2), step = i / Lanes::kStepValues;
    const int32_t lane = pair % Lanes::kLanes, value = pair / Lanes::kLanes * 2 + i % 2;
    const int32_t column = step * Lanes::kStepValues + lane * Lanes::kValues + value;
    shared[i] = column < codec.layout.num_values ? codec.packed_dev[column] : 0;
  }
  __syncthreads();
}

template <typename Lanes>
__global__ void __launch_bounds__(kThreads, Lanes::kBlocksPerMultiprocessor)
    DictLanesKernel(const __grid_constant__ DeviceDictCodec codec, const __grid_constant__ GatherRequest request,
                    int32_t window_bytes, GatherGrid grid) {
  constexpr int kLanes = Lanes::kLanes, kGroups = Lanes::kGroups, kRows = Lanes::kRows, kSteps = Lanes::kSteps;
  constexpr int kUnits = Lanes::kUnits, kValues = Lanes::kValues, kQuads = Lanes::kQuads;
  constexpr int kCodeBits = Lanes::kCodeBits;
  constexpr int32_t kWindowStride = DictShared<Lanes>::kWindowStride;
  constexpr int32_t kLaneLowBytes = kValues * Lanes::kLowBits / 8;
  extern __shared__ uint4 shared[];
  const DictLayout& layout = codec.layout;
  const DictShared<Lanes> parts(layout, window_bytes);
  const int lane = threadIdx.x % kWarpSize, group = lane / kLanes, group_lane = lane % kLanes;
  const int warp_in_block = threadIdx.x / kWarpSize;
  uint8_t* const list =
      KeepInRegister(reinterpret_cast<uint8_t*>(shared) + parts.dictionary_bytes + warp_in_block * parts.warp_bytes);
  RowEntry* const entries = reinterpret_cast<RowEntry*>(list);
  uint8_t* const windows = list + DictShared<Lanes>::kListBytes + (Lanes::kLongRows ? 0 : group * kWindowStride);
  const int32_t row_bytes = layout.row_bytes, num_values = layout.num_values;
  const int32_t codes_bytes = layout.codes_bytes();
  const int32_t payload_limit = min(request.lead_bytes, PayloadLimit(request, row_bytes));
  auto escape_byte_after = [&](int32_t with_low) { return codes_bytes + (with_low * Lanes::kLowBits + 7) / 8; };
  const int32_t fixed_escape_byte = escape_byte_after(num_values);  // without a zero code
  const uint32_t alignment = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(request.out_dev)) | row_bytes;
  const WarpShare share = MakeWarpShare(request, grid);
  int32_t hits = 0, misses = 0;
  int64_t store_bytes = 0;

  // Where the lane's first value of a step lies, counted from the step's first code and low bits.
  const uint32_t code_shift = KeepInRegister(static_cast<uint32_t>(group_lane * kValues * kCodeBits % 32));
  uint8_t* const code_window = KeepInRegister(windows + group_lane * kValues * kCodeBits / 32 * 4);
  uint8_t* const low_window = KeepInRegister(windows + codes_bytes + group_lane * kLaneLowBytes);
  // Which codes of a step are the lane's: the row may end before its last one.
  auto make_code_mask = [&](int32_t step_value) {
    const int32_t values = num_values - step_value - group_lane * kValues;
    return LowMask<uint32_t>(kCodeBits * max(0, min(values, kValues)));
  };
  uint32_t code_masks[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (!Lanes::kManySteps) code_masks[step] = KeepInRegister(make_code_mask(step * Lanes::kStepValues));
  }
  uint64_t shared_dictionary = 0;
  if constexpr (Lanes::kPerColumn) {
    LoadDictionaries<Lanes>(codec, reinterpret_cast<uint64_t*>(shared), parts.dictionary_bytes / 8);
  } else {
    shared_dictionary = __ldg(codec.packed_dev);
  }
  uint32_t escape_symbols[2] = {};  // of the escape codes; 0 for kPlainSymbol
#pragma unroll
  for (int code = 0; code < kPlainSymbol; ++code) {
    escape_symbols[code / 4] |= uint32_t{codec.escape_dictionary[code]} << (code % 4 * 8);
  }

  // The lane's codes of a step of row r of the tile, whose payload starts so many bytes into its window.
  auto load_codes = [&](int r, int32_t skew, int32_t step_value, uint32_t mask) {
    const uint32_t* codes = reinterpret_cast<const uint32_t*>(code_window + r * kGroups * kWindowStride + skew) +
                            step_value * kCodeBits / 32;
    const uint32_t packed = __funnelshift_r(codes[0], codes[1], code_shift);
    return Lanes::kZeroCode ? (packed & mask) | (ZeroCodes<kCodeBits>() & ~mask) : packed & mask;
  };
  // How many codes of a row are of a kind, which has the lowest bits of their nibbles set; for rows of several tiles.
  auto count_codes = [&](int32_t skew, auto of_kind) {
    int32_t count = 0;
    for (int32_t step_value = 0; step_value < num_values; step_value += Lanes::kStepValues) {
      const uint32_t packed = load_codes(0, skew, step_value, make_code_mask(step_value));
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        count += __popc(of_kind(CodeNibbles<kCodeBits>(packed >> (4 * kCodeBits * q))));
      }
    }
    return WarpSum(count);
  };

  uint4 loaded[kRows][Lanes::kLoads];  // the first bytes of the next tile's payloads
  auto fetch = [&](int tile) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const RowEntry entry = entries[tile + r * kGroups + group];
#pragma unroll
      for (int load = 0; load < Lanes::kLoads; ++load) {
        const int32_t at = (load * kLanes + group_lane) * kLoadBytes;
        if (at < entry.end) loaded[r][load] = LoadGlobal(entry.base + at);
      }
    }
  };
  // Puts them where all lanes can read them, after a __syncwarp.
  auto finish_fetch = [&](int tile) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const RowEntry entry = entries[tile + r * kGroups + group];
      uint8_t* window = windows + r * kGroups * kWindowStride;
#pragma unroll
      for (int load = 0; load < Lanes::kLoads; ++load) {
        const int32_t at = (load * kLanes + group_lane) * kLoadBytes;
        if (at < entry.end) *reinterpret_cast<uint4*>(window + at) = loaded[r][load];
      }
      if constexpr (Lanes::kLongRows) {  // only their first bytes are fetched ahead
        for (int32_t at = Lanes::kFetchBytes + group_lane * kLoadBytes; at < entry.end; at += kLanes * kLoadBytes) {
          *reinterpret_cast<uint4*>(window + at) = LoadGlobal(entry.base + at);
        }
      }
    }
  };

  for (int64_t batch = share.first; batch < share.end; batch += share.stride) {
    const int count = static_cast<int>(min(static_cast<int64_t>(share.ids_per_batch), share.end - batch));
    RowRef mine;  // of id `lane` of the batch; none where there is no such id
    uint32_t position = 0;
    if (lane < count) {
      position = static_cast<uint32_t>(request.order_dev ? request.order_dev[batch + lane] : batch + lane);
      const int64_t place = request.places_dev ? request.places_dev[batch + lane] : PlaceOf(request, position);
      mine = Lookup(request, row_bytes, position, place);
    }
    // Payloads first.
    const unsigned payload_lanes = __ballot_sync(kWholeWarp, mine.kind == RowKind::kPayload);
    const int num_payloads = __popc(payload_lanes);
    const int payloads_before = __popc(payload_lanes & LowMask<uint32_t>(lane));
    RowEntry entry = {nullptr, position, 0, 0, static_cast<uint8_t>(lane)};
    if (mine.kind == RowKind::kPayload) {
      entry.skew = static_cast<uint8_t>(reinterpret_cast<uintptr_t>(mine.source) % Lanes::kBaseAlign);
      entry.base = mine.source - entry.skew;
      entry.end = static_cast<uint16_t>(entry.skew + request.lead_bytes);
      entries[payloads_before] = entry;
      if (!mine.hit) store_bytes += RoundUp(entry.end, kLoadBytes);
    } else {
      entries[num_payloads + lane - payloads_before] = entry;
      if (mine.kind == RowKind::kRaw && !mine.hit) {
        store_bytes += row_bytes + (request.slot_bytes < row_bytes ? kOverflowIndexBytes : 0);
      }
    }
    hits += mine.kind != RowKind::kNothing && mine.hit;
    misses += mine.kind != RowKind::kNothing && !mine.hit;
    __syncwarp();

    bool any_long = false;  // or damaged
    fetch(0);
    for (int tile = 0; tile < num_payloads; tile += Lanes::kTileRows) {
      finish_fetch(tile);
      __syncwarp();
      if (tile + Lanes::kTileRows < num_payloads) fetch(tile + Lanes::kTileRows);

      RowEntry rows[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) rows[r] = entries[tile + r * kGroups + group];
      int32_t escapes_before[kRows] = {}, plain_before[kRows] = {};
      int32_t row_escapes = -1;  // of a row that takes several tiles, once it is needed: few have plain symbols
      // With a zero code: values with low bits, of the row and before this tile.
      int32_t row_lows[kRows] = {}, lows_before[kRows] = {};
      if constexpr (Lanes::kZeroCode && Lanes::kLongRows) {
        row_lows[0] =
            count_codes(rows[0].skew, [](uint32_t nibbles) { return ~ZeroNibbles<kCodeBits>(nibbles) & 0x1111u; });
      }
      // A damaged payload's may be anywhere.
      auto escape_byte_of = [&](int r) {
        return Lanes::kZeroCode ? min(escape_byte_after(row_lows[r]), payload_limit) : fixed_escape_byte;
      };
      int32_t first_value = 0;
      do {
        uint32_t symbols[kUnits][kQuads] = {}, escaped[kUnits] = {}, with_low[kUnits] = {};
        UnitCounts<Lanes> counts, low_counts;
        // Rows that the tile does not have are decoded from what is there, which costs less than to branch.
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const int r = u / kSteps, step = u % kSteps;
          const int32_t step_value = first_value + step * Lanes::kStepValues;
          if (Lanes::kManySteps && step_value >= num_values) continue;
          const uint32_t mask = Lanes::kManySteps ? make_code_mask(step_value) : code_masks[step];
          const uint32_t packed = load_codes(r, rows[r].skew, step_value, mask);
#pragma unroll
          for (int q = 0; q < kQuads; ++q) {
            const uint32_t nibbles = CodeNibbles<kCodeBits>(packed >> (4 * kCodeBits * q));
            escaped[u] |= FullNibbles<kCodeBits>(nibbles) << (16 * q);
            if (Lanes::kZeroCode) with_low[u] |= (~ZeroNibbles<kCodeBits>(nibbles) & 0x1111u) << (16 * q);
            if constexpr (Lanes::kPerColumn) {
              const auto* dictionaries =
                  reinterpret_cast<const ulonglong2*>(shared) +
                  (step_value / Lanes::kStepValues * (Lanes::kStepValues / 2) + 2 * q * kLanes + group_lane);
              const ulonglong2 low = dictionaries[0], high = dictionaries[kLanes];
              auto look_up = [&](unsigned long long dictionary, int k) {
                return __byte_perm(static_cast<uint32_t>(dictionary), static_cast<uint32_t>(dictionary >> 32),
                                   nibbles >> (4 * k));
              };
              symbols[u][q] = __byte_perm(__byte_perm(look_up(low.x, 0), look_up(low.y, 1), 0x0040),
                                          __byte_perm(look_up(high.x, 2), look_up(high.y, 3), 0x0040), 0x5410);
            } else {
              symbols[u][q] = __byte_perm(static_cast<uint32_t>(shared_dictionary),
                                          static_cast<uint32_t>(shared_dictionary >> 32), nibbles);
            }
          }
          counts.Add(u, __popc(escaped[u]));
          if (Lanes::kZeroCode) low_counts.Add(u, __popc(with_low[u]));
        }
        const UnitCounts<Lanes> totals = counts.SumLanes(group_lane);
        int32_t low_ranks[kUnits] = {};  // of each unit's first value with low bits
        if constexpr (Lanes::kZeroCode) {
          const UnitCounts<Lanes> low_totals = low_counts.SumLanes(group_lane);
#pragma unroll
          for (int u = 0; u < kUnits; ++u) {
            low_ranks[u] = lows_before[u / kSteps] + low_counts.Of(u);
            lows_before[u / kSteps] += low_totals.Of(u);
          }
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (!Lanes::kLongRows) row_lows[r] = lows_before[r];
          }
        }

        // The dictionaries have 0 for the escape, the escape dictionary for plain symbols.
        uint32_t plain[kUnits][kQuads], any_plain = 0;  // bit 8k: value k of the quad has a plain symbol
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const int r = u / kSteps;
          const int32_t escape_byte = escape_byte_of(r);
          const int32_t most_before = 8 * (payload_limit - escape_byte) / kEscapeCodeBits;
          const uint32_t rank = min(escapes_before[r], most_before) + counts.Of(u);
          const uint32_t bit = 8 * (escape_byte % 4) + rank * kEscapeCodeBits;  // rows start at multiples of 4 bytes
          const uint32_t* words = reinterpret_cast<const uint32_t*>(windows + r * kGroups * kWindowStride +
                                                                    rows[r].skew + escape_byte / 4 * 4) +
                                  bit / 32;
          uint32_t packed = __funnelshift_r(words[0], words[1], bit % 32);
#pragma unroll
          for (int q = 0; q < kQuads; ++q) {
            const uint32_t of_quad = (escaped[u] >> (16 * q)) & 0xffffu;
            const uint32_t nibbles = CodeNibbles<kEscapeCodeBits>(packed);
            symbols[u][q] |= ToEscaped(__byte_perm(escape_symbols[0], escape_symbols[1], nibbles), of_quad);
            plain[u][q] = ToEscaped(__byte_perm(0, 1u << 24, nibbles), of_quad);
            any_plain |= plain[u][q];
            if (q + 1 < kQuads) packed >>= kEscapeCodeBits * __popc(of_quad);
          }
          escapes_before[r] += totals.Of(u);
        }

        if (__any_sync(kWholeWarp, any_plain)) {
          if (Lanes::kLongRows && row_escapes < 0) {
            row_escapes = count_codes(rows[0].skew, [](uint32_t nibbles) { return FullNibbles<kCodeBits>(nibbles); });
          }
          UnitCounts<Lanes> plain_counts;
#pragma unroll
          for (int u = 0; u < kUnits; ++u) {
#pragma unroll
            for (int q = 0; q < kQuads; ++q) plain_counts.Add(u, __popc(plain[u][q]));
          }
          const UnitCounts<Lanes> plain_totals = plain_counts.SumLanes(group_lane);
#pragma unroll
          for (int u = 0; u < kUnits; ++u) {
            const int r = u / kSteps;
            const int32_t codes = layout.EscapeBytes(Lanes::kLongRows ? row_escapes : escapes_before[r]);
            const uint8_t* next = windows + r * kGroups * kWindowStride + rows[r].skew +
                                  min(escape_byte_of(r) + codes + plain_before[r], payload_limit) + plain_counts.Of(u);
            plain_before[r] += plain_totals.Of(u);
#pragma unroll
            for (int q = 0; q < kQuads; ++q) {
              for (uint32_t first; plain[u][q]; plain[u][q] ^= first) {
                first = plain[u][q] & (0u - plain[u][q]);
                symbols[u][q] += first * (*next++ & LowMask<uint32_t>(Lanes::kSymbolBits));
              }
            }
          }
          __syncwarp();
        }

#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
          const int r = u / kSteps, step = u % kSteps;
          const int32_t step_value = first_value + step * Lanes::kStepValues;
          const int32_t column = step_value + group_lane * kValues;
          const RowEntry& row = rows[r];
          if (row.end > 0 && column < num_values) {
            uint8_t* out = request.out_dev + int64_t{row.position} * row_bytes + column * Lanes::kValueBytes;
            uint4 values;
            if constexpr (Lanes::kZeroCode) {
              const int bit = min(8 * codes_bytes + low_ranks[u] * Lanes::kLowBits, 8 * payload_limit);
              const uint8_t* window = windows + r * kGroups * kWindowStride + row.skew;
              values = AssemblePresent<Lanes>(reinterpret_cast<const uint32_t*>(window) + bit / 32, bit % 32,
                                              with_low[u], layout.sign_low, symbols[u]);
            } else {
              const uint8_t* low =
                  low_window + r * kGroups * kWindowStride + row.skew + step_value * Lanes::kLowBits / 8;
              const int before =
                  (Lanes::kWhole ? 0 : codes_bytes) + (kLaneLowBytes % 4 ? group_lane * kLaneLowBytes : 0);
              values = AssembleValues<Lanes>(low, before % 4, symbols[u]);
            }
            StoreValues<Lanes>(out, values, num_values - column, alignment);
          }
        }
        first_value += kSteps * Lanes::kStepValues;
      } while (Lanes::kLongRows && first_value < num_values);

      __syncwarp();  // the windows are filled again
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int32_t planes = Lanes::kZeroCode ? escape_byte_after(row_lows[r]) : fixed_escape_byte;
        const int32_t needed = planes + layout.EscapeBytes(escapes_before[r]) + plain_before[r];
        if (needed > payload_limit && tile + r * kGroups + group < num_payloads) {
          any_long = true;
          if (group_lane == 0) entries[tile + r * kGroups + group].lane |= kLongFlag;
        }
      }
    }

    // Rows that are something else than a payload; and, once more, those whose payloads did not fit what was fetched:
    // lead_bytes is a hint, which need not be right, and the payload may be damaged.
    unsigned others = LowMask<uint32_t>(count) & ~payload_lanes;
    if (__any_sync(kWholeWarp, any_long)) {
      __syncwarp();
      const int looked_up_by = entries[lane].lane;
      for (unsigned of = __ballot_sync(kWholeWarp, looked_up_by & kLongFlag); of; of &= of - 1) {
        others |= 1u << (__shfl_sync(kWholeWarp, looked_up_by, __ffs(of) - 1) & ~kLongFlag);
      }
    }
    for (; others; others &= others - 1) {
      const int of_lane = __ffs(others) - 1;
      const RowRef ref = mine.Broadcast(of_lane);
      uint8_t* out = request.out_dev + int64_t{__shfl_sync(kWholeWarp, position, of_lane)} * row_bytes;
      bool whole = ref.kind == RowKind::kRaw;
      if (ref.kind == RowKind::kPayload) {
        if constexpr (!Lanes::kZeroCode) {  // of which the whole slot was fetched
          whole = DecodeInPlace<typename Lanes::Word>(codec, request, ref.source, out);
          __syncwarp();  // what it wrote of a damaged row is written over
        }
        if (lane == of_lane) {
          if (!whole) ReportError(request, kDamagedRow, position);
          if (!Lanes::kZeroCode && !ref.hit) store_bytes += PayloadLimit(request, row_bytes);
        }
      } else if (whole) {
        CopyRaw(ref.source, row_bytes, out, alignment % 4 == 0, lane);
      }
      if (!whole) ZeroRow(row_bytes, out, alignment % 4 == 0, lane);
    }
    __syncwarp();  // the list is filled again
  }
  AddCounters(request, hits, misses, store_bytes);
}

// Fewest lanes a row that have it in one step and its payload in one load; long rows take several.
template <int kValueBytes, int kLowBits, int kCodeBits, bool kPerColumn, bool kWhole, bool kZeroCode>
std::optional<GatherKernel> ChooseDictLanes(const DeviceDictCodec& codec, int32_t lead_bytes) {
  const int32_t values = codec.layout.num_values;
  auto window_bytes = [&](int32_t base_align) { return RoundUp(lead_bytes + base_align - 4, kLoadBytes); };
  std::optional<GatherKernel> chosen;
  auto choose_if = [&](auto lanes, bool last) {
    using Lanes = decltype(lanes);
    const int32_t window = window_bytes(Lanes::kBaseAlign);
    const bool fits = values <= Lanes::kSteps * Lanes::kStepValues && window <= Lanes::kFetchBytes;
    if (fits || last) {
      chosen = GatherKernel(reinterpret_cast<const void*>(&DictLanesKernel<Lanes>), lead_bytes, window,
                            DictShared<Lanes>(codec.layout, window).block_bytes(), Lanes::kGroups);
    }
    return fits || last;
  };
  // Portable to every GPU that the library is built for.
  constexpr size_t kMostSharedBytes = 96 << 10;
  using LongRows = DictLanes<kValueBytes, kLowBits, kCodeBits, 32, 1, 4, 6, kPerColumn, kWhole, kZeroCode>;
  constexpr int kSteps = kValueBytes == 4 ? 6 : 3;  // of 768 values
  using MediumRows =
      DictLanes<kValueBytes, kLowBits, kCodeBits, 32, 6 / kSteps, kSteps, kSteps, kPerColumn, kWhole, kZeroCode>;
  if (DictShared<LongRows>(codec.layout, window_bytes(kSectorBytes)).block_bytes() > kMostSharedBytes) return {};
  choose_if(DictLanes<kValueBytes, kLowBits, kCodeBits, 8, 4, 1, 1, kPerColumn, kWhole, kZeroCode>{}, false) ||
      choose_if(DictLanes<kValueBytes, kLowBits, kCodeBits, 16, 4, 1, 1, kPerColumn, kWhole, kZeroCode>{}, false) ||
      choose_if(DictLanes<kValueBytes, kLowBits, kCodeBits, 32, 4, 1, 1, kPerColumn, kWhole, kZeroCode>{}, false) ||
      choose_if(DictLanes<kValueBytes, kLowBits, kCodeBits, 32, 2, 2, 2, kPerColumn, kWhole, kZeroCode>{}, false) ||
      (values > 512 && choose_if(MediumRows{}, false)) || choose_if(LongRows{}, true);
  return chosen;
}

template <int kValueBytes, int kLowBits, int kCodeBits, bool kZeroCode>
std::optional<GatherKernel> ChooseDictLanes(const DeviceDictCodec& codec, const GatherRequest& request,
                                            int out_alignment) {
  const DictLayout& layout = codec.layout;
  const bool form = layout.value_bits == 8 * kValueBytes && layout.low_bits() == kLowBits && layout.trim_bits == 0 &&
                    layout.code_bits == kCodeBits && layout.zero_code == kZeroCode &&
                    (kZeroCode ? !layout.per_column : layout.sign_low) && codec.packed_dev != nullptr;
  bool starts_sector = true;
  for (int i = 0; i < request.num_segments; ++i) {
    starts_sector &= reinterpret_cast<uintptr_t>(request.segments[i].rows.slots) % kSectorBytes == 0;
  }
  // Payloads are fetched at once. With a zero code they can be of any length.
  const int32_t lead_bytes = kZeroCode ? request.slot_bytes : request.lead_bytes;
  // Where not even what every row has fits the slot every payload is damaged, which the general kernel sees to.
  const int32_t longest = std::min({lead_bytes, request.slot_bytes, layout.row_bytes - 1});
  const int32_t least = layout.codes_bytes() + (kZeroCode ? 0 : layout.LowBytes(layout.num_values));
  const bool rows =
      request.slot_bytes % 4 == 0 && starts_sector && out_alignment % kValueBytes == 0 && longest >= least;
  if (!form || !rows) return {};
  const bool whole = (out_alignment | layout.row_bytes) % 16 == 0 && (kZeroCode || layout.codes_bytes() % 4 == 0);
  if constexpr (!kZeroCode) {
    if (layout.per_column) {
      return whole ? ChooseDictLanes<kValueBytes, kLowBits, kCodeBits, true, true, false>(codec, lead_bytes)
                   : ChooseDictLanes<kValueBytes, kLowBits, kCodeBits, true, false, false>(codec, lead_bytes);
    }
  }
  return whole ? ChooseDictLanes<kValueBytes, kLowBits, kCodeBits, false, true, kZeroCode>(codec, lead_bytes)
               : ChooseDictLanes<kValueBytes, kLowBits, kCodeBits, false, false, kZeroCode>(codec, lead_bytes);
}

// Codes of 2 and 3 bits, with and without a zero code.
template <int kValueBytes, int kLowBits>
std::optional<GatherKernel> ChooseDictLanes(const DeviceDictCodec& codec, const GatherRequest& request,
                                            int out_alignment) {
  auto chosen = ChooseDictLanes<kValueBytes, kLowBits, 2, false>(codec, request, out_alignment);
  if (!chosen) chosen = ChooseDictLanes<kValueBytes, kLowBits, 3, false>(codec, request, out_alignment);
  if (!chosen) chosen = ChooseDictLanes<kValueBytes, kLowBits, 2, true>(codec, request, out_alignment);
  if (!chosen) chosen = ChooseDictLanes<kValueBytes, kLowBits, 3, true>(codec, request, out_alignment);
  return chosen;
}

}  // namespace ibp
