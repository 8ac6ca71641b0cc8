#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "core/check.h"

namespace ibp {

struct CudaError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void CudaCheck(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed call must not be reported again by the next one
  Throw<CudaError>(call, ": ", cudaGetErrorName(status), " (", cudaGetErrorString(status), ")");
}

// Multiprocessors of the current device.
inline int NumMultiprocessors() {
  constexpr int kMaxDevices = 64;
  static int known[kMaxDevices] = {};
  int device = 0;
  CudaCheck(cudaGetDevice(&device), "cudaGetDevice");
  int count = device < kMaxDevices ? known[device] : 0;
  if (count == 0) {
    CudaCheck(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    if (device < kMaxDevices) known[device] = count;
  }
  return count;
}

// Blocks of a kernel that the current device holds at once. Remembered per thread for the last question, since asking
// the driver takes longer than a launch.
template <typename Kernel>
int ResidentBlocks(Kernel kernel, int threads, size_t shared_bytes) {
  struct Answer {
    int device = -1, threads = 0, blocks = 0;
    size_t shared_bytes = 0;
    Kernel kernel = nullptr;
  };
  static thread_local Answer last;
  int device = 0;
  CudaCheck(cudaGetDevice(&device), "cudaGetDevice");
  if (last.device != device || last.threads != threads || last.shared_bytes != shared_bytes || last.kernel != kernel) {
    int per_multiprocessor = 0;
    CudaCheck(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, reinterpret_cast<const void*>(kernel),
                                                            threads, shared_bytes),
              "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    last.device = device;
    last.threads = threads;
    last.shared_bytes = shared_bytes;
    last.kernel = kernel;
    last.blocks = NumMultiprocessors() * (per_multiprocessor > 0 ? per_multiprocessor : 1);
  }
  return last.blocks;
}

}  // namespace ibp

#define IBP_CUDA_CHECK(call) ::ibp::CudaCheck((call), #call)
