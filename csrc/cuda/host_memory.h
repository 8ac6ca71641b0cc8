// Making host memory that Python owns readable by the GPU.
#pragma once

#include <cstdint>

namespace ibp {

// Page-locks and maps [host, host + bytes). Returns its device address. Throws CudaError if the system refuses.
uint64_t RegisterHostMemory(void* host, int64_t bytes);
void UnregisterHostMemory(void* host);

}  // namespace ibp
