// Rows to slots in one pass, codec "dict": nothing is measured before, and the host waits for nothing. For forms whose
// offsets are known beforehand (no zero code) and whose dictionaries fit a register: those of floats that the fast
// gather decodes. A warp has a row. A lane takes 16 bytes of it at once and finds its codes by comparing bytes of a
// register, so the tables that map symbols to codes are not read. The payload grows in shared memory.
#include <algorithm>

#include "cuda/dict_kernels.h"
#include "cuda/encode_common.cuh"
#include "cuda/gather_launch.h"

namespace ibp {
namespace {

// A payload in shared memory, up to the length of a slot. What lies behind is dropped: then the row is stored raw.
struct Line {
  uint32_t* words;
  int32_t num_words;

  // `bits` at bit `offset` of words that are 0 there.
  __device__ __forceinline__ void Or(int32_t offset, uint32_t bits) const {
    const int32_t word = offset / 32, shift = offset % 32;
    if (bits == 0) return;
    if (word < num_words && bits << shift) atomicOr(words + word, bits << shift);
    if (shift && word + 1 < num_words && bits >> (32 - shift)) atomicOr(words + word + 1, bits >> (32 - shift));
  }
};

// The number of the first byte of `bytes` that is `symbol`; 8 if there is none.
__device__ __forceinline__ int FindByte(uint64_t bytes, uint32_t symbol) {
  const uint32_t four = symbol * 0x01010101u;
  const uint32_t low = __vcmpeq4(static_cast<uint32_t>(bytes), four);
  const uint32_t high = __vcmpeq4(static_cast<uint32_t>(bytes >> 32), four);
  return low ? (__ffs(low) - 1) / 8 : high ? 4 + (__ffs(high) - 1) / 8 : 8;
}

// kLowBits of a value of type Word are its low bits; the others are its symbol.
template <typename Word_, int kLowBits_>
struct OnceForm {
  using Word = Word_;
  static constexpr int kLowBits = kLowBits_, kBits = 8 * sizeof(Word), kValues = 16 / sizeof(Word);
  static constexpr int kLowWords = (kValues * kLowBits + 31) / 32;
};

// 16 bytes of a row from value `first` on; zeros behind its end.
template <typename Form>
struct LaneValues {
  typename Form::Word at[Form::kValues] = {};

  __device__ __forceinline__ LaneValues(const uint8_t* row, int32_t first, int32_t num_values, bool aligned) {
    using Word = typename Form::Word;
    const Word* values = reinterpret_cast<const Word*>(row) + first;
    if (aligned && first + Form::kValues <= num_values) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(values));
      memcpy(at, &x, sizeof x);
    } else {
#pragma unroll
      for (int v = 0; v < Form::kValues; ++v) {
        if (first + v < num_values) at[v] = values[v];
      }
    }
  }
  // Symbol and low bits of value v.
  __device__ __forceinline__ uint32_t Rotated(int v, bool sign_low) const {
    const uint32_t x = at[v];
    return sign_low ? ((x << 1) | (x >> (Form::kBits - 1))) & LowMask<uint32_t>(Form::kBits) : x;
  }
};

template <typename Form>
__global__ void __launch_bounds__(kEncodeThreads)
    EncodeOnceKernel(const __grid_constant__ DeviceDictCodec codec, uint64_t escape_symbols,
                     const uint8_t* __restrict__ rows, int64_t num_rows, bool aligned, EncodeOnceTarget target) {
  constexpr int kValues = Form::kValues, kLowBits = Form::kLowBits;
  extern __shared__ uint32_t lines[];
  const DictLayout& layout = codec.layout;
  const int lane = threadIdx.x % kWarpSize;
  const int32_t slot_words = target.slot_bytes / 4, num_values = layout.num_values;
  const Line line{lines + threadIdx.x / kWarpSize * slot_words, slot_words};
  const int32_t low_bit = 8 * layout.codes_bytes(), escape_bit = low_bit + 8 * layout.LowBytes(num_values);
  const uint64_t shared_symbols = __ldg(codec.packed_dev);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kEncodeWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kEncodeWarps + threadIdx.x / kWarpSize; row < num_rows;
       row += stride) {
    const uint8_t* source = rows + row * layout.row_bytes;
    for (int32_t word = lane; word < slot_words; word += kWarpSize) line.words[word] = 0;
    __syncwarp();
    int32_t escapes = 0, plain_symbols = 0;  // of the values so far
    for (int32_t tile = 0; tile < num_values; tile += kWarpSize * kValues) {
      const int32_t first = tile + lane * kValues;
      const LaneValues<Form> values(source, first, num_values, aligned);
      uint32_t codes = 0, low[Form::kLowWords + 1] = {}, escaped = 0;
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        const bool has_value = first + v < num_values;
        const uint32_t x = values.Rotated(v, layout.sign_low);
        const uint64_t symbols = layout.per_column && has_value ? __ldg(codec.packed_dev + first + v) : shared_symbols;
        const int code = min(FindByte(symbols, x >> kLowBits), layout.escape());
        if (has_value) {
          codes |= static_cast<uint32_t>(code) << (v * layout.code_bits);
          escaped |= static_cast<uint32_t>(code == layout.escape()) << v;
        }
        const uint32_t low_bits = x & LowMask<uint32_t>(kLowBits);
        const int at = v * kLowBits;  // a constant, the loop being unrolled
        low[at / 32] |= low_bits << (at % 32);
        if (at % 32 + kLowBits > 32) low[at / 32 + 1] |= low_bits >> (32 - at % 32);
      }
      line.Or(first * layout.code_bits, codes);
#pragma unroll
      for (int w = 0; w < Form::kLowWords; ++w) line.Or(low_bit + first * kLowBits + 32 * w, low[w]);
      if (!__any_sync(kWholeWarp, escaped)) continue;
      const int32_t own = __popc(escaped), sum = WarpInclusiveSum(own, lane);
      int32_t bit = escape_bit + (escapes + sum - own) * kEscapeCodeBits, plain = 0;
#pragma unroll
      for (int v = 0; v < kValues; ++v) {
        if ((escaped >> v) & 1) {
          const int code = min(FindByte(escape_symbols, values.Rotated(v, layout.sign_low) >> kLowBits), kPlainSymbol);
          line.Or(bit, static_cast<uint32_t>(code));
          bit += kEscapeCodeBits;
          plain += code == kPlainSymbol;
        }
      }
      escapes += __shfl_sync(kWholeWarp, sum, kWarpSize - 1);
      if (__any_sync(kWholeWarp, plain)) plain_symbols += WarpSum(plain);
    }
    const int32_t payload_bytes = layout.PayloadBytes(num_values, escapes, plain_symbols);
    const bool compressed = payload_bytes < layout.row_bytes && payload_bytes <= target.slot_bytes;
    if (compressed && plain_symbols > 0) {  // they follow the last escape code: seldom, so the row is read again
      int32_t bit = escape_bit + 8 * DictLayout::EscapeBytes(escapes);
      for (int32_t tile = 0; tile < num_values; tile += kWarpSize) {
        const int32_t i = tile + lane;
        bool is_plain = false;
        uint32_t symbol = 0;
        if (i < num_values) {
          const LaneValues<Form> value(source, i, min(i + 1, num_values), false);
          symbol = value.Rotated(0, layout.sign_low) >> kLowBits;
          const uint64_t symbols = layout.per_column ? __ldg(codec.packed_dev + i) : shared_symbols;
          is_plain = FindByte(symbols, symbol) >= layout.escape() && FindByte(escape_symbols, symbol) >= kPlainSymbol;
        }
        const unsigned plain_lanes = __ballot_sync(kWholeWarp, is_plain);
        if (is_plain) line.Or(bit + 8 * __popc(plain_lanes & LowMask<uint32_t>(lane)), symbol);
        bit += 8 * __popc(plain_lanes);
      }
    }
    __syncwarp();
    uint32_t* slot = reinterpret_cast<uint32_t*>(target.slots + row * target.slot_bytes);
    if (compressed) {
      for (int32_t word = lane; word < slot_words; word += kWarpSize) slot[word] = line.words[word];
      if (lane == 0) atomicOr(target.bitmask + row / 32, uint32_t{1} << (row % 32));
    } else {
      unsigned long long index = 0;
      if (lane == 0) index = atomicAdd(target.overflow_count, 1ull);
      index = __shfl_sync(kWholeWarp, index, 0);
      for (int32_t word = lane; word < slot_words; word += kWarpSize) {
        slot[word] = word == 0 ? static_cast<uint32_t>(index) : 0;
      }
      if (index < static_cast<unsigned long long>(target.num_overflow)) {
        uint8_t* raw = target.overflow + static_cast<int64_t>(index) * layout.row_bytes;
        for (int32_t i = lane; i < layout.row_bytes; i += kWarpSize) raw[i] = source[i];
      }
    }
    __syncwarp();  // the line is cleared again
  }
}

template <typename Form>
void Launch(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows, const EncodeOnceTarget& target,
            cudaStream_t stream) {
  uint64_t escape_symbols = 0;
  for (int code = 0; code < kPlainSymbol; ++code)
    escape_symbols |= uint64_t{codec.escape_dictionary[code]} << (8 * code);
  const bool aligned = codec.layout.row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(rows_dev) % 16 == 0;
  const size_t shared_bytes = static_cast<size_t>(target.slot_bytes) * kEncodeWarps;
  auto* kernel = &EncodeOnceKernel<Form>;
  IBP_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(MostSharedBytes())));
  int per_multiprocessor = 0;
  IBP_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, kEncodeThreads, shared_bytes));
  const int64_t useful = (num_rows + kEncodeWarps - 1) / kEncodeWarps;
  const int64_t resident = int64_t{std::max(per_multiprocessor, 1)} * NumMultiprocessors();
  kernel<<<static_cast<int>(std::min(useful, resident)), kEncodeThreads, shared_bytes, stream>>>(
      codec, escape_symbols, rows_dev, num_rows, aligned, target);
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

bool CanEncodeOnce(const DeviceDictCodec& codec, int64_t slot_bytes) {
  const DictLayout& layout = codec.layout;
  const bool known = (layout.value_bits == 16 && (layout.low_bits() == 8 || layout.low_bits() == 11)) ||
                     (layout.value_bits == 32 && layout.low_bits() == 24);
  return known && layout.trim_bits == 0 && !layout.zero_code && codec.packed_dev != nullptr && slot_bytes % 4 == 0 &&
         slot_bytes < layout.row_bytes && slot_bytes * kEncodeWarps <= static_cast<int64_t>(MostSharedBytes());
}

void LaunchEncodeOnce(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows,
                      const EncodeOnceTarget& target, cudaStream_t stream) {
  IBP_CUDA_CHECK(cudaMemsetAsync(target.overflow_count, 0, sizeof(*target.overflow_count), stream));
  if (num_rows == 0) return;
  const uintptr_t value_bytes = static_cast<uintptr_t>(codec.layout.value_bits) / 8;
  if (reinterpret_cast<uintptr_t>(rows_dev) % value_bytes != 0) {
    Throw<ArgumentError>("rows: want them at a multiple of ", value_bytes, " bytes");
  }
  IBP_CUDA_CHECK(cudaMemsetAsync(target.bitmask, 0, static_cast<size_t>(BitmaskBytes(num_rows)), stream));
  if (codec.layout.value_bits == 32) {
    Launch<OnceForm<uint32_t, 24>>(codec, rows_dev, num_rows, target, stream);
  } else if (codec.layout.low_bits() == 8) {
    Launch<OnceForm<uint16_t, 8>>(codec, rows_dev, num_rows, target, stream);
  } else {
    Launch<OnceForm<uint16_t, 11>>(codec, rows_dev, num_rows, target, stream);
  }
}

}  // namespace ibp
