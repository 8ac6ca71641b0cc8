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

}  // namespace ibp

#define IBP_CUDA_CHECK(call) ::ibp::CudaCheck((call), #call)
