#include "cuda/cuda_check.h"
#include "cuda/host_memory.h"

namespace ibp {

uint64_t RegisterHostMemory(void* host, int64_t bytes) {
  IBP_CUDA_CHECK(cudaHostRegister(host, static_cast<size_t>(bytes), cudaHostRegisterMapped | cudaHostRegisterPortable));
  void* device = nullptr;
  const cudaError_t status = cudaHostGetDevicePointer(&device, host, 0);
  if (status != cudaSuccess) {
    cudaHostUnregister(host);
    CudaCheck(status, "cudaHostGetDevicePointer");
  }
  return reinterpret_cast<uint64_t>(device);
}

void UnregisterHostMemory(void* host) { IBP_CUDA_CHECK(cudaHostUnregister(host)); }

void CopyToGpu(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  IBP_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream));
}

}  // namespace ibp
