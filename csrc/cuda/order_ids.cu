// Sorts ids by the places of their rows. Random reads of mapped host memory over more than a gigabyte are bound by
// address translation; in order they are not, and rows that share a page are read together.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "cuda/cuda_check.h"
#include "cuda/order_ids.h"
#include "cuda/places.cuh"

namespace ibp {
namespace {

constexpr int kThreads = 256;

// Scratch memory is places and positions, each twice, then what CUB asks for.
constexpr int64_t kAlignment = 256;

int64_t ArrayBytes(int64_t num_ids) { return CeilDiv(num_ids * int64_t{sizeof(uint32_t)}, kAlignment) * kAlignment; }

template <typename T>
T* Array(uint8_t* scratch_dev, int index, int64_t num_ids) {
  return reinterpret_cast<T*>(scratch_dev + index * ArrayBytes(num_ids));
}

// Of the largest place, which is the one of bad ids.
int EndBit(const GatherRequest& request) {
  int bits = 1;
  while (request.num_places >> bits) ++bits;
  return bits;
}

// For so many ids or less. The answer is kept for the next call, since batches are of similar sizes and CUB asks the
// driver.
int64_t CubBytes(int64_t num_ids, int end_bit) {
  struct Answer {
    int64_t num_ids = -1, bytes = 0;
    int end_bit = 0, device = -1;
  };
  static thread_local Answer last;
  int device = 0;
  IBP_CUDA_CHECK(cudaGetDevice(&device));
  if (num_ids != last.num_ids || end_bit != last.end_bit || device != last.device) {
    cub::DoubleBuffer<uint32_t> places;
    cub::DoubleBuffer<int32_t> positions;
    size_t bytes = 0;
    IBP_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, bytes, places, positions, num_ids, 0, end_bit));
    last = {num_ids, static_cast<int64_t>(bytes), end_bit, device};
  }
  return last.bytes;
}

__global__ void __launch_bounds__(kThreads) PlacesKernel(GatherRequest request, uint32_t* places, int32_t* positions) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < request.num_ids; i += stride) {
    places[i] = static_cast<uint32_t>(PlaceOf(request, i));
    positions[i] = static_cast<int32_t>(i);
  }
}

}  // namespace

int64_t OrderScratchBytes(const GatherRequest& request, int64_t num_ids) {
  constexpr int64_t kStep = 1 << 16;
  return 4 * ArrayBytes(num_ids) + CubBytes(CeilDiv(num_ids, kStep) * kStep, EndBit(request));
}

void LaunchOrder(GatherRequest& request, uint8_t* scratch_dev, int64_t scratch_bytes, cudaStream_t stream) {
  const int64_t num_ids = request.num_ids;
  if (num_ids == 0) return;
  cub::DoubleBuffer<uint32_t> places(Array<uint32_t>(scratch_dev, 0, num_ids),
                                     Array<uint32_t>(scratch_dev, 1, num_ids));
  cub::DoubleBuffer<int32_t> positions(Array<int32_t>(scratch_dev, 2, num_ids),
                                       Array<int32_t>(scratch_dev, 3, num_ids));
  const int grid = static_cast<int>(std::min<int64_t>(CeilDiv(num_ids, kThreads), int64_t{8} * NumMultiprocessors()));
  PlacesKernel<<<grid, kThreads, 0, stream>>>(request, places.Current(), positions.Current());
  IBP_CUDA_CHECK(cudaGetLastError());
  size_t cub_bytes = static_cast<size_t>(scratch_bytes - 4 * ArrayBytes(num_ids));
  IBP_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(Array<uint8_t>(scratch_dev, 4, num_ids), cub_bytes, places, positions,
                                                 num_ids, 0, EndBit(request), stream));
  request.places_dev = places.Current();
  request.order_dev = positions.Current();
}

}  // namespace ibp
