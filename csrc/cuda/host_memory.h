// Making host memory that Python owns readable by the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace ibp {

// Page-locks and maps [host, host + bytes). Returns its device address. Throws CudaError if the system refuses.
uint64_t RegisterHostMemory(void* host, int64_t bytes);
void UnregisterHostMemory(void* host);

// Enqueues a copy of page-locked memory, in one registered piece, to device memory.
void CopyToGpu(void* to, const void* from, int64_t bytes, cudaStream_t stream);

}  // namespace ibp
