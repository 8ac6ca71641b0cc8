// Counting bits and measuring payloads: what fitting a codec needs.
#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/fit_ibp.h"
#include "cuda/ibp_kernels.h"
#include "cuda/row_units.cuh"

namespace ibp {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpSize;

// Each warp owns 32 units and a share of the rows; a lane keeps its unit's 32 counters in registers.
__global__ void CountOnesKernel(const uint8_t* __restrict__ rows, int64_t num_rows, int32_t row_bytes, bool aligned,
                                int64_t* __restrict__ ones) {
  const int lane = threadIdx.x % kWarpSize;
  const int32_t unit = blockIdx.x * kWarpSize + lane;
  if (unit >= NumUnits(row_bytes)) return;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kWarpsPerBlock + threadIdx.x / kWarpSize;
  const int64_t stride = static_cast<int64_t>(gridDim.y) * kWarpsPerBlock;
  uint32_t counters[32] = {};
  for (int64_t row = first; row < num_rows; row += stride) {
    const uint32_t x = LoadUnit(rows + row * row_bytes, unit, row_bytes, aligned);
#pragma unroll
    for (int bit = 0; bit < 32; ++bit) counters[bit] += (x >> bit) & 1;
  }
  const int bits = min(32, 8 * (row_bytes - 4 * unit));
#pragma unroll
  for (int bit = 0; bit < 32; ++bit) {
    if (bit < bits && counters[bit]) {
      atomicAdd(reinterpret_cast<unsigned long long*>(ones + 32 * static_cast<int64_t>(unit) + bit),
                static_cast<unsigned long long>(counters[bit]));
    }
  }
}

// One warp a row.
__global__ void MeasureKernel(DeviceIbpCodec codec, const uint8_t* __restrict__ rows, int64_t num_rows, bool aligned,
                              int32_t* __restrict__ payload_bytes) {
  const int lane = threadIdx.x % kWarpSize;
  const int32_t row_bytes = codec.layout.row_bytes;
  const int32_t units = NumUnits(row_bytes);
  const UnitChunks chunks(codec.layout.chunk_bits);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarpSize; row < num_rows;
       row += stride) {
    int32_t bits = 0;
    // Chunks longer than a tile of 32 units: what they cost either way, until their end decides.
    int32_t kept_so_far = 0, whole_so_far = 0;
    bool differs_so_far = false;
    for (int32_t tile = 0; tile < units; tile += kWarpSize) {
      const int32_t unit = tile + lane;
      uint32_t keep = 0, valid = 0, differing = 0;
      if (unit < units) {
        const UnitTable table(codec, unit);
        keep = table.keep();
        valid = table.valid();
        differing = (LoadUnit(rows + row * row_bytes, unit, row_bytes, aligned) & valid & ~keep) ^ table.bitval();
      }
      if (chunks.units_per_chunk() == 1) {
        bits += __popc(keep | (chunks.Fill(chunks.NonZero(differing)) & valid));
        continue;
      }
      const uint32_t differing_units = __ballot_sync(kWholeWarp, differing != 0);
      if (chunks.units_per_chunk() <= kWarpSize) {
        const int first = lane & ~(chunks.units_per_chunk() - 1);
        const bool differs = (differing_units >> first) & LowMask<uint32_t>(chunks.units_per_chunk());
        bits += __popc(differs ? valid : keep);
        continue;
      }
      kept_so_far += __popc(keep);
      whole_so_far += __popc(valid);
      differs_so_far |= differing_units != 0;
      const int32_t next = tile + kWarpSize;
      if (next % chunks.units_per_chunk() == 0 || next >= units) {
        bits += differs_so_far ? whole_so_far : kept_so_far;
        kept_so_far = whole_so_far = 0;
        differs_so_far = false;
      }
    }
    bits = WarpSum(bits) + codec.layout.num_chunks;
    if (lane == 0) payload_bytes[row] = (bits + 7) / 8;
  }
}

}  // namespace

void LaunchCountOnes(const uint8_t* rows_dev, int64_t num_rows, int32_t row_bytes, int64_t* ones_dev,
                     cudaStream_t stream) {
  if (num_rows == 0) return;
  const int tiles = (NumUnits(row_bytes) + kWarpSize - 1) / kWarpSize;
  const int64_t wanted = std::max<int64_t>(1, int64_t{8} * NumMultiprocessors() / tiles);
  const int64_t useful = (num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const dim3 grid(tiles, static_cast<unsigned>(std::min<int64_t>({wanted, useful, 65535})));
  CountOnesKernel<<<grid, kThreads, 0, stream>>>(rows_dev, num_rows, row_bytes, RowsAreAligned(rows_dev, row_bytes),
                                                 ones_dev);
  IBP_CUDA_CHECK(cudaGetLastError());
}

void LaunchMeasure(const DeviceIbpCodec& codec, const uint8_t* rows_dev, int64_t num_rows, int32_t* payload_bytes_dev,
                   cudaStream_t stream) {
  if (num_rows == 0) return;
  const int64_t useful = (num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const int grid = static_cast<int>(std::min<int64_t>(useful, int64_t{8} * NumMultiprocessors()));
  MeasureKernel<<<grid, kThreads, 0, stream>>>(codec, rows_dev, num_rows,
                                               RowsAreAligned(rows_dev, codec.layout.row_bytes), payload_bytes_dev);
  IBP_CUDA_CHECK(cudaGetLastError());
}

}  // namespace ibp
