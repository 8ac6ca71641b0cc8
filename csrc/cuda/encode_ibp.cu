// Rows to slots, codec "ibp".
#include <algorithm>

#include "cuda/encode_common.cuh"
#include "cuda/ibp_kernels.h"

namespace ibp {
namespace {

// Words of the longest payload, and one more because a unit's bits may straddle two words.
__host__ __device__ inline int64_t ScratchWords(const IbpLayout& layout) {
  return (int64_t{layout.num_chunks} + 8 * int64_t{layout.row_bytes} + 31) / 32 + 1;
}

__global__ void EncodeKernel(DeviceIbpCodec codec, const uint8_t* __restrict__ rows, int64_t num_rows, bool aligned,
                             EncodeTarget target, uint32_t* __restrict__ scratch) {
  const int lane = threadIdx.x % kWarpSize;
  const int32_t row_bytes = codec.layout.row_bytes;
  const int32_t num_chunks = codec.layout.num_chunks;
  const int32_t units = NumUnits(row_bytes);
  const UnitChunks chunks(codec.layout.chunk_bits);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kEncodeWarps + threadIdx.x / kWarpSize;
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kEncodeWarps;
  const int64_t scratch_words = ScratchWords(codec.layout);
  uint32_t* line = scratch + warp * scratch_words;
  for (int64_t row = warp; row < num_rows; row += num_warps) {
    const uint8_t* source = rows + row * row_bytes;
    for (int64_t word = lane; word < scratch_words; word += kWarpSize) {
      const int64_t ones = num_chunks - 32 * word;  // every chunk participates until a unit says no
      line[word] = ones <= 0 ? 0 : LowMask<uint32_t>(ones < 32 ? static_cast<int>(ones) : 32);
    }
    __syncwarp();
    for (int32_t unit = lane; unit < units; unit += kWarpSize) {
      const UnitTable table(codec, unit);
      const uint32_t invariant = table.valid() & ~table.keep();
      const uint32_t differing = (LoadUnit(source, unit, row_bytes, aligned) & invariant) ^ table.bitval();
      const uint32_t unpacked = chunks.NonZero(differing);
      const int32_t chunk = chunks.FirstChunk(unit);
      if (unpacked) atomicAnd(line + chunk / 32, ~(unpacked << (chunk % 32)));
    }
    __syncwarp();
    int32_t offset = num_chunks;
    for (int32_t tile = 0; tile < units; tile += kWarpSize) {
      const int32_t unit = tile + lane;
      uint32_t keep = 0, unpacked = 0, kept = 0;
      if (unit < units) {
        const UnitTable table(codec, unit);
        const int32_t chunk = chunks.FirstChunk(unit);
        keep = table.keep();
        // The atomics went to the L2 cache; a plain load could find an older line in the L1.
        unpacked = chunks.Fill(~(__ldcg(line + chunk / 32) >> (chunk % 32))) & table.valid();
        kept = keep | unpacked;
      }
      const int32_t size = __popc(kept);
      const int32_t end = WarpInclusiveSum(size, lane);
      if (size) {
        const uint32_t x = LoadUnit(source, unit, row_bytes, aligned);
        uint32_t moves[kExpandSteps];
        UnitTable(codec, unit).Moves(moves);
        // Each field on its own: packed if its chunk participates, whole if not.
        const uint32_t packed = PackFields(x & ~unpacked, keep & ~unpacked, moves);
        int32_t at = offset + end - size;
        for (int f = 0; f < chunks.fields; ++f) {
          const uint32_t field = LowMask<uint32_t>(chunks.field_bits) << (f * chunks.field_bits);
          const uint32_t bits = (unpacked & field ? x & unpacked & field : packed & field) >> (f * chunks.field_bits);
          OrBits(line, at, bits);
          at += __popc(kept & field);
        }
      }
      offset += __shfl_sync(kWholeWarp, end, kWarpSize - 1);
    }
    __syncwarp();
    WriteSlot(target, row, source, row_bytes, line, (offset + 7) / 8, lane);
    __syncwarp();  // the scratch line is reused
  }
}

}  // namespace

int64_t EncodeScratchBytes(const IbpLayout& layout) { return EncodeScratchBytes(ScratchWords(layout)); }

void LaunchEncode(const DeviceIbpCodec& codec, const uint8_t* rows_dev, int64_t num_rows, const EncodeTarget& target,
                  uint8_t* scratch_dev, cudaStream_t stream) {
  if (num_rows == 0) return;
  const int grid = StartEncode(target, num_rows, stream);
  EncodeKernel<<<grid, kEncodeThreads, 0, stream>>>(codec, rows_dev, num_rows,
                                                    RowsAreAligned(rows_dev, codec.layout.row_bytes), target,
                                                    reinterpret_cast<uint32_t*>(scratch_dev));
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
