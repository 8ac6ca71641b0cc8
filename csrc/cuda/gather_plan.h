// A gather that is done many times over the same rows: everything that stays the same from call to call, checked once.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/gather_report.h"
#include "cuda/gpu_codec.h"
#include "cuda/stream_uses.h"

namespace ibp {

// Rows as the plan's maker describes them. Lengths of the buffers in bytes; what they are for is in core/format.h.
struct RowBuffers {
  const uint8_t* slots = nullptr;
  int64_t slots_bytes = 0;
  const uint32_t* bitmask = nullptr;
  int64_t bitmask_bytes = 0;
  const uint8_t* overflow = nullptr;
  int64_t overflow_bytes = 0;
  int64_t num_rows = 0;
};

// See RowSegment, which is made of it.
struct PlanSegment {
  RowBuffers rows;
  int64_t first_place = 0;
  int64_t origin = 0;
  bool hits = false;
};

struct PlanOptions {
  int64_t slot_bytes = 0;
  Packing packing;
  int64_t lead_bytes = 0;              // a hint: bytes of a slot to fetch before its payload's length is known
  int64_t num_rows = 0;                // ids are below
  const int32_t* place_dev = nullptr;  // [num_rows], or null: the place of an id is the id
  int64_t* counters_dev = nullptr;     // [kNumGatherCounters]
  uint32_t* touched_dev = nullptr;  // [num_places / 32, rounded up], or null: a bit is set for each place that is read
  // Of kernels that fetch misses alone: few blocks saturate the link, keep the addresses in flight close together, and
  // leave the GPU to training.
  int miss_blocks = 0;
  // Whether misses are worth ordering: from this many bytes that they are spread over on.
  int64_t order_from_bytes = 0;
  int64_t order_from_misses = 0;
};

// How one gather is to go. Left alone, as suits the rows and the miss rate that gathers had lately.
struct GatherHints {
  std::optional<bool> ordered;    // fetch in the order of where the rows lie
  std::optional<int> max_blocks;  // of the kernel, in order those that fetch misses; 0: all that the GPU holds
};

// Keeps what its addresses lie in alive (`owners`), and lets go of it only when every gather that was launched has run,
// on whatever stream. In a forked child, which has no CUDA, it lets go of nothing. Safe to use from several threads.
class GatherPlan {
 public:
  // Throws ArgumentError for segments that do not go together, and CudaError.
  GatherPlan(int device, std::shared_ptr<const GpuCodec> codec, const std::vector<PlanSegment>& segments,
             const PlanOptions& options, std::shared_ptr<GatherReport> report, std::shared_ptr<const void> owners);
  ~GatherPlan();
  GatherPlan(const GatherPlan&) = delete;
  GatherPlan& operator=(const GatherPlan&) = delete;

  // ids_dev: int32 or int64 [num_ids], or null: the ids from first_id on; out_dev: [num_ids, row_bytes]; both on the
  // plan's device. Enqueues.
  //
  // order_scratch_dev: 256-byte aligned, of order_scratch_bytes bytes, or null. Where the ids are to be ordered and it
  // is too short, nothing is done, and so many bytes are returned: call again with them. Otherwise returns 0.
  int64_t Gather(const void* ids_dev, bool ids_are_int64, int64_t first_id, int64_t num_ids, uint8_t* out_dev,
                 const GatherHints& hints, uint8_t* order_scratch_dev, int64_t order_scratch_bytes,
                 cudaStream_t stream);

  // As the end does: for whoever holds a lock of its own then, which it lets go of meanwhile. Nothing is gathered any
  // more.
  void WaitAtEnd() {
    Wait(false);
    waited_ = true;
  }
  // Until all gathers that were launched so far have run. replays_too: those of replayed CUDA graphs among them.
  void Wait(bool replays_too);
  // Work that others launch reads what this plan's gathers do: it is waited for, too.
  void Follow(std::shared_ptr<StreamUses> uses);

  // What is the same for all gathers.
  const GatherRequest& request() const { return request_; }
  const GpuCodec& codec() const { return *codec_; }
  int device() const { return device_; }
  int32_t row_bytes() const { return codec_->row_bytes(); }
  // Whether the misses are spread over so much that many at once are worth ordering.
  bool ordering_pays() const { return ordering_pays_; }
  int64_t num_places() const { return request_.num_places; }

 private:
  const GatherKernel& KernelFor(const uint8_t* out_dev);

  static constexpr int kAlignments = 5;  // of an output: 1, 2, 4, 8, 16 bytes

  const int device_;
  const std::shared_ptr<const GpuCodec> codec_;
  const std::shared_ptr<GatherReport> report_;
  std::shared_ptr<const void> owners_;
  GatherRequest request_;
  int miss_blocks_ = 0;
  bool has_hits_ = false;
  bool ordering_pays_ = false;
  int64_t order_from_misses_ = 0;
  std::mutex mutex_;  // of kernels_ and followed_
  std::array<std::optional<GatherKernel>, kAlignments> kernels_;
  StreamUses uses_;
  std::vector<std::shared_ptr<StreamUses>> followed_;
  bool waited_ = false;
};

}  // namespace ibp
