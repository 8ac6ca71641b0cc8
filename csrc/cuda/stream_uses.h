// What work on which streams still reads a plan's memory, so that the memory can outlive it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace ibp {

// Makes `device` current, and the one that was current again at the end; but if that one has no context yet, which a
// thread starts with, it gets none from this either.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;  // -1: nothing to do
};

// Whether a CUDA graph is being captured on the stream. Its work does not run, and nothing can wait for it.
bool IsCapturing(cudaStream_t stream);

// Remembers, for each stream that work was launched on, an event behind the last of it. Events, not streams: a stream
// may be destroyed while its work runs. Safe to use from several threads.
class StreamUses {
 public:
  // device: what the streams are of.
  explicit StreamUses(int device);
  ~StreamUses() = default;
  StreamUses(const StreamUses&) = delete;
  StreamUses& operator=(const StreamUses&) = delete;

  // Calls Record at its end: also where a launch fails after others.
  struct RecordAtEnd {
    StreamUses& uses;
    cudaStream_t stream;
    ~RecordAtEnd() { uses.Record(stream); }
  };

  // Called after each launch. A captured launch runs whenever the graph is replayed.
  void Record(cudaStream_t stream);
  // Returns when all recorded work has run. In a forked child, which has no CUDA, at once. Reports no errors: those of
  // earlier work reach whoever uses the device next. Replays that are under way are waited for, too, if so asked: that
  // waits for the whole device, which is not allowed while another graph is captured.
  void Wait(bool replays_too);
  // Whether this is a forked child of the process that made it.
  bool OfAnotherProcess() const;

 private:
  class Event;
  struct Use {
    uint64_t stream_id;  // no other stream of the process ever has it, unlike the handle
    std::shared_ptr<Event> event;
  };

  const int device_;
  const int process_;
  std::mutex mutex_;
  std::vector<Use> uses_;
  bool captured_ = false;
  bool unknown_ = false;  // work was launched that there is no event behind
};

}  // namespace ibp
