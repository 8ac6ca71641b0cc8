#include <unistd.h>

#include <algorithm>

#include "cuda/cuda_check.h"
#include "cuda/stream_uses.h"

namespace ibp {
namespace {

// Waiting is allowed while another thread captures a graph: what is waited for is not captured.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

uint64_t StreamId(cudaStream_t stream) {
#if CUDART_VERSION >= 12000
  unsigned long long id = 0;
  IBP_CUDA_CHECK(cudaStreamGetId(stream, &id));
  return id;
#else
  return reinterpret_cast<uint64_t>(stream);
#endif
}

// Whether cudaSetDevice of this device would make no context; until CUDA 12 it never did. True if nobody can say.
bool HasContext([[maybe_unused]] int device) {
#if CUDART_VERSION >= 12000
  using GetState = int (*)(int device, unsigned int* flags, int* active);  // cuDevicePrimaryCtxGetState
  static const GetState get_state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &found);
#else
    cudaGetDriverEntryPoint("cuDevicePrimaryCtxGetState", &function, cudaEnableDefault, &found);
#endif
    cudaGetLastError();
    return found == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState>(function) : nullptr;
  }();
  unsigned int flags = 0;
  int active = 1;
  if (get_state != nullptr && get_state(device, &flags, &active) == 0) return active != 0;
#endif
  return true;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  int current = 0;
  IBP_CUDA_CHECK(cudaGetDevice(&current));
  if (current == device) return;
  IBP_CUDA_CHECK(cudaSetDevice(device));
  before_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0 && HasContext(before_)) cudaSetDevice(before_);
}

bool IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  IBP_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

class StreamUses::Event {
 public:
  Event() { IBP_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() {
    if (getpid() == process_) cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Record(cudaStream_t stream) { IBP_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  bool IsDone() const {
    if (cudaEventQuery(event_) == cudaSuccess) return true;
    cudaGetLastError();  // "not ready" would be reported again by the next call
    return false;
  }
  void Wait() const { cudaEventSynchronize(event_); }

 private:
  cudaEvent_t event_ = nullptr;
  const int process_ = getpid();
};

StreamUses::StreamUses(int device) : device_(device), process_(getpid()) {}

void StreamUses::Record(cudaStream_t stream) {
  // The work runs already: if it cannot be remembered on its own, everything is waited for.
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    if (IsCapturing(stream)) {
      captured_ = true;
      return;
    }
    const uint64_t id = StreamId(stream);
    auto use = std::find_if(uses_.begin(), uses_.end(), [&](const Use& one) { return one.stream_id == id; });
    if (use == uses_.end()) {
      constexpr size_t kMostIdleStreams = 32;
      if (uses_.size() >= kMostIdleStreams) {
        const RelaxedCapture relaxed;
        uses_.erase(std::remove_if(uses_.begin(), uses_.end(), [](const Use& one) { return one.event->IsDone(); }),
                    uses_.end());
      }
      uses_.push_back({id, std::make_shared<Event>()});
      use = uses_.end() - 1;
    }
    use->event->Record(stream);
  } catch (...) {
    unknown_ = true;
  }
}

bool StreamUses::OfAnotherProcess() const { return getpid() != process_; }

void StreamUses::Wait(bool replays_too) {
  if (OfAnotherProcess()) return;
  std::vector<Use> uses;
  bool device_too = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    uses = uses_;
    device_too = unknown_ || (captured_ && replays_too);
  }
  if (uses.empty() && !device_too) return;
  try {
    const DeviceGuard guard(device_);
    const RelaxedCapture relaxed;
    for (const Use& use : uses) use.event->Wait();
    if (device_too) cudaDeviceSynchronize();
  } catch (...) {  // the driver is shutting down
  }
  cudaGetLastError();
}

}  // namespace ibp
