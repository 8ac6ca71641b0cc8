// Rows to slots, codec "dict", and the lengths of payloads: one warp a row, one value a lane.
#include <algorithm>

#include "cuda/dict_kernels.h"
#include "cuda/encode_common.cuh"

namespace ibp {
namespace {

// Words of the longest payload, and one more because a value's bits may straddle two words.
__host__ __device__ inline int64_t ScratchWords(const DictLayout& layout) {
  return (DictPayloadBound(layout) + 3) / 4 + 1;
}

template <typename Word>
__device__ Word LoadValue(const uint8_t* row, int32_t i) {
  const uint8_t* bytes = row + static_cast<int64_t>(i) * sizeof(Word);
  if (reinterpret_cast<uintptr_t>(bytes) % sizeof(Word) == 0) return *reinterpret_cast<const Word*>(bytes);
  Word value = 0;
  for (int b = 0; b < static_cast<int>(sizeof(Word)); ++b) value |= static_cast<Word>(Word{bytes[b]} << (8 * b));
  return value;
}

template <typename Word>
struct CodedValue {
  uint32_t symbol = 0;
  Word low = 0;
  int code = 0;
  int escape_code = 0;
  bool escapes = false, plain = false, has_low = false, fits = true;

  __device__ CodedValue(const DeviceDictCodec& codec, const uint8_t* row, int32_t i) {
    const DictLayout& layout = codec.layout;
    if (i >= layout.num_values) return;
    const Word value = LoadValue<Word>(row, i);
    const SplitValue<Word> parts = Split(value, layout);
    symbol = parts.symbol;
    low = parts.low;
    fits = parts.fits;
    const int64_t column = layout.per_column ? int64_t{i} << layout.symbol_bits : 0;
    const bool zero = layout.zero_code && value == 0;
    code = zero ? layout.num_symbols() : __ldg(codec.code_of_symbol_dev + column + symbol);
    escapes = code == layout.escape();
    if (escapes) escape_code = __ldg(codec.escape_code_of_symbol_dev + symbol);
    plain = escapes && escape_code == kPlainSymbol;
    has_low = !zero;
  }
};

template <typename Word>
__global__ void MeasureKernel(DeviceDictCodec codec, const uint8_t* __restrict__ rows, int64_t num_rows,
                              int32_t* __restrict__ payload_bytes) {
  const int lane = threadIdx.x % kWarpSize;
  const DictLayout& layout = codec.layout;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kEncodeWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kEncodeWarps + threadIdx.x / kWarpSize; row < num_rows;
       row += stride) {
    int32_t escapes = 0, plain_symbols = 0, with_low = 0;
    bool fits = true;
    for (int32_t i = lane; i < layout.num_values; i += kWarpSize) {
      const CodedValue<Word> value(codec, rows + row * layout.row_bytes, i);
      escapes += value.escapes;
      plain_symbols += value.plain;
      with_low += value.has_low;
      fits &= value.fits;
    }
    escapes = WarpSum(escapes);
    plain_symbols = WarpSum(plain_symbols);
    with_low = WarpSum(with_low);
    fits = __all_sync(kWholeWarp, fits);
    if (lane == 0) {
      payload_bytes[row] = fits ? layout.PayloadBytes(with_low, escapes, plain_symbols) : layout.row_bytes;
    }
  }
}

template <typename Word>
__global__ void EncodeKernel(DeviceDictCodec codec, const uint8_t* __restrict__ rows, int64_t num_rows,
                             EncodeTarget target, uint32_t* __restrict__ scratch) {
  const int lane = threadIdx.x % kWarpSize;
  const DictLayout& layout = codec.layout;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kEncodeWarps + threadIdx.x / kWarpSize;
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kEncodeWarps;
  const int64_t scratch_words = ScratchWords(layout);
  uint32_t* line = scratch + warp * scratch_words;
  const unsigned lanes_before = LowMask<uint32_t>(lane);
  for (int64_t row = warp; row < num_rows; row += num_warps) {
    const uint8_t* source = rows + row * layout.row_bytes;
    for (int64_t word = lane; word < scratch_words; word += kWarpSize) line[word] = 0;
    int32_t all_lows = 0, all_escapes = 0;
    for (int32_t i = lane; i < layout.num_values; i += kWarpSize) {
      const CodedValue<Word> value(codec, source, i);
      all_lows += value.has_low;
      all_escapes += value.escapes;
    }
    const int64_t escape_byte = int64_t{layout.codes_bytes()} + layout.LowBytes(WarpSum(all_lows));
    const int64_t plain_byte = escape_byte + layout.EscapeBytes(WarpSum(all_escapes));
    __syncwarp();
    int32_t lows = 0, escapes = 0, plain_symbols = 0;
    bool fits = true;
    for (int32_t tile = 0; tile < layout.num_values; tile += kWarpSize) {
      const CodedValue<Word> value(codec, source, tile + lane);
      const unsigned low_lanes = __ballot_sync(kWholeWarp, value.has_low);
      const unsigned escape_lanes = __ballot_sync(kWholeWarp, value.escapes);
      const unsigned plain_lanes = __ballot_sync(kWholeWarp, value.plain);
      if (value.code) OrBits(line, int64_t{tile + lane} * layout.code_bits, value.code);
      if (value.has_low) {
        const int64_t bit =
            8 * int64_t{layout.codes_bytes()} + int64_t{lows + __popc(low_lanes & lanes_before)} * layout.low_bits();
        OrBits(line, bit, static_cast<uint32_t>(value.low));
        if (sizeof(Word) == 8) OrBits(line, bit + 32, static_cast<uint32_t>(static_cast<uint64_t>(value.low) >> 32));
      }
      if (value.escapes) {
        const int64_t rank = escapes + __popc(escape_lanes & lanes_before);
        OrBits(line, 8 * escape_byte + rank * kEscapeCodeBits, value.escape_code);
      }
      if (value.plain) {
        const int64_t rank = plain_symbols + __popc(plain_lanes & lanes_before);
        OrBits(line, 8 * (plain_byte + rank * layout.symbol_bytes()), value.symbol);
      }
      lows += __popc(low_lanes);
      escapes += __popc(escape_lanes);
      plain_symbols += __popc(plain_lanes);
      fits &= __all_sync(kWholeWarp, value.fits);
    }
    __syncwarp();
    const int32_t payload_bytes = fits ? layout.PayloadBytes(lows, escapes, plain_symbols) : layout.row_bytes;
    WriteSlot(target, row, source, layout.row_bytes, line, payload_bytes, lane);
    __syncwarp();  // the scratch line is reused
  }
}

}  // namespace

int64_t EncodeScratchBytes(const DictLayout& layout) { return EncodeScratchBytes(ScratchWords(layout)); }

void LaunchMeasure(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
                   cudaStream_t stream) {
  if (num_rows == 0) return;
  const int64_t useful = (num_rows + kEncodeWarps - 1) / kEncodeWarps;
  const int grid = static_cast<int>(std::min<int64_t>(useful, int64_t{8} * NumMultiprocessors()));
  WithWord(codec.layout, [&](auto word) {
    MeasureKernel<decltype(word)><<<grid, kEncodeThreads, 0, stream>>>(codec, rows_dev, num_rows, payload_bytes_dev);
  });
  IBP_CUDA_CHECK(cudaGetLastError());
}

void LaunchEncode(const DeviceDictCodec& codec, const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target,
                  uint8_t* scratch_dev, cudaStream_t stream) {
  if (num_rows == 0) return;
  const int grid = StartEncode(target, num_rows, stream);
  WithWord(codec.layout, [&](auto word) {
    EncodeKernel<decltype(word)><<<grid, kEncodeThreads, 0, stream>>>(codec, rows_dev, num_rows, target,
                                                                      reinterpret_cast<uint32_t*>(scratch_dev));
  });
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
