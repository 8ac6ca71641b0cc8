#include <algorithm>

#include "core/slot_buffers.h"
#include "cuda/cuda_check.h"
#include "cuda/gather_plan.h"
#include "cuda/order_ids.h"

namespace ibp {
namespace {

DeviceRows Checked(const RowBuffers& rows, int64_t row_bytes, int64_t slot_bytes, const Packing& packing) {
  DeviceRows checked;
  if (packing.is_packed()) {
    checked.packed_bytes = CheckPackedBuffers(row_bytes, rows.num_rows, slot_bytes, packing, rows.slots_bytes,
                                              rows.bitmask, rows.bitmask_bytes);
    CheckAtLeast("overflow bytes, slack included", kSlackBytes, rows.overflow_bytes);
  } else {
    CheckSlotBuffers(row_bytes, rows.num_rows, slot_bytes, rows.slots_bytes, rows.bitmask_bytes, rows.overflow_bytes);
  }
  checked.slots = rows.slots;
  checked.bitmask = rows.bitmask;
  checked.overflow = rows.overflow;
  checked.num_rows = rows.num_rows;
  checked.num_overflow = (rows.overflow_bytes - kSlackBytes) / row_bytes;
  return checked;
}

}  // namespace

GatherPlan::GatherPlan(int device, std::shared_ptr<const GpuCodec> codec, const std::vector<PlanSegment>& segments,
                       const PlanOptions& options, std::shared_ptr<GatherReport> report,
                       std::shared_ptr<const void> owners)
    : device_(device),
      codec_(std::move(codec)),
      report_(std::move(report)),
      owners_(std::move(owners)),
      miss_blocks_(options.miss_blocks),
      order_from_misses_(options.order_from_misses),
      uses_(device) {
  const int64_t slot_bytes = options.slot_bytes, row_bytes = codec_->row_bytes();
  if (segments.empty() || segments.size() > kMaxSegments) {
    Throw<ArgumentError>("segments: want 1 to ", kMaxSegments, ", got ", segments.size());
  }
  request_.num_segments = static_cast<int32_t>(segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const PlanSegment& given = segments[i];
    RowSegment& segment = request_.segments[i];
    segment.rows = Checked(given.rows, row_bytes, slot_bytes, options.packing);
    segment.first_place = given.first_place;
    segment.origin = given.origin;
    segment.hits = given.hits;
    // A segment ends where the next one starts; the last one, with its rows.
    const int64_t end = i + 1 < segments.size() ? segments[i + 1].first_place : given.origin + given.rows.num_rows;
    const bool in_order = i == 0 ? given.first_place == 0 : given.hits <= segments[i - 1].hits;
    if (!in_order || given.origin > given.first_place || end < given.first_place ||
        end - given.origin > given.rows.num_rows) {
      Throw<ArgumentError>("segment ", i,
                           ": want places that start at 0, go on without a gap and lie within its rows, "
                           "hits first, got places ",
                           given.first_place, " to ", end, " from row ", given.first_place - given.origin, " on, of ",
                           given.rows.num_rows, " rows");
    }
    request_.num_places = end;
    if (given.hits) {
      request_.num_hit_places = end;
      has_hits_ = true;
    }
  }
  if (options.lead_bytes < 1 || options.lead_bytes > slot_bytes) {
    Throw<ArgumentError>("lead_bytes: want 1 to ", slot_bytes, ", got ", options.lead_bytes);
  }
  if (options.num_rows < 0 || (options.place_dev == nullptr && options.num_rows > request_.num_places)) {
    Throw<ArgumentError>("num_rows: want 0 to ", request_.num_places, ", got ", options.num_rows);
  }
  request_.num_rows = options.num_rows;
  request_.place_dev = options.place_dev;
  request_.slot_bytes = static_cast<int32_t>(slot_bytes);
  request_.packing = options.packing;
  request_.lead_bytes = static_cast<int32_t>(options.lead_bytes);
  request_.counters_dev = options.counters_dev;
  request_.error = report_->error_words();
  request_.touched_dev = options.touched_dev;
  // Misses are spread over the places that are not hits.
  const int64_t miss_places = request_.num_places - request_.num_hit_places;
  const DeviceRows& last = request_.segments[segments.size() - 1].rows;
  const int64_t mean_bytes =
      options.packing.is_packed() ? last.packed_bytes / std::max<int64_t>(last.num_rows, 1) : slot_bytes;
  ordering_pays_ = miss_places * mean_bytes >= options.order_from_bytes;
  const DeviceGuard guard(device_);
  kernels_.back() = codec_->ChooseGather(request_, 1 << (kAlignments - 1));  // for what allocators return
}

GatherPlan::~GatherPlan() {
  if (!waited_) WaitAtEnd();
  // Some of torch's allocators end the process that frees memory in a forked child.
  if (uses_.OfAnotherProcess()) new std::shared_ptr<const void>(std::move(owners_));
}

void GatherPlan::Wait(bool replays_too) {
  uses_.Wait(replays_too);
  std::vector<std::shared_ptr<StreamUses>> followed;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    followed = followed_;
  }
  for (const auto& uses : followed) uses->Wait(replays_too);
}

void GatherPlan::Follow(std::shared_ptr<StreamUses> uses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Nothing is launched any more with those that nobody else has.
  const auto others = [](const std::shared_ptr<StreamUses>& one) {
    if (one.use_count() > 1) return false;
    one->Wait(false);
    return true;
  };
  followed_.erase(std::remove_if(followed_.begin(), followed_.end(), others), followed_.end());
  followed_.push_back(std::move(uses));
}

const GatherKernel& GatherPlan::KernelFor(const uint8_t* out_dev) {
  int log2_alignment = 0;
  while (log2_alignment < kAlignments - 1 &&
         reinterpret_cast<uintptr_t>(out_dev) % (uintptr_t{2} << log2_alignment) == 0)
    ++log2_alignment;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::optional<GatherKernel>& kernel = kernels_[static_cast<size_t>(log2_alignment)];
  if (!kernel) kernel = codec_->ChooseGather(request_, 1 << log2_alignment);
  return *kernel;  // never changed again
}

int64_t GatherPlan::Gather(const void* ids_dev, bool ids_are_int64, int64_t first_id, int64_t num_ids, uint8_t* out_dev,
                           const GatherHints& hints, uint8_t* order_scratch_dev, int64_t order_scratch_bytes,
                           cudaStream_t stream) {
  if (num_ids == 0) return 0;
  const double miss_rate = has_hits_ ? report_->MissRate() : 1.0;
  const bool can_order = request_.num_places < UINT32_MAX;
  const double misses = miss_rate * static_cast<double>(num_ids);
  const bool ordered =
      hints.ordered.value_or(can_order && ordering_pays_ && misses >= static_cast<double>(order_from_misses_));
  if (ordered && !can_order) {
    Throw<ArgumentError>("ordered: want less than ", UINT32_MAX, " rows and cached rows, got ", request_.num_places);
  }
  GatherRequest request = request_;
  request.ids_are_int64 = ids_are_int64;
  request.max_blocks = hints.max_blocks.value_or(ordered || miss_rate == 1.0 ? miss_blocks_ : 0);
  const DeviceGuard guard(device_);
  if (ordered) {
    const int64_t wanted = OrderScratchBytes(request, std::min(num_ids, kMaxIdsPerLaunch));
    if (order_scratch_bytes < wanted) return wanted;
  }
  const GatherKernel& kernel = KernelFor(out_dev);
  const bool shows = has_hits_ && report_->ShouldShow(num_ids);
  const StreamUses::RecordAtEnd record{uses_, stream};
  for (int64_t first = 0; first < num_ids; first += kMaxIdsPerLaunch) {
    if (ids_dev) request.ids_dev = static_cast<const uint8_t*>(ids_dev) + first * (ids_are_int64 ? 8 : 4);
    request.first_id = first_id + first;
    request.num_ids = std::min(num_ids - first, kMaxIdsPerLaunch);
    request.out_dev = out_dev + first * row_bytes();
    if (ordered) LaunchOrder(request, order_scratch_dev, order_scratch_bytes, stream);
    kernel.Launch(codec_->device_codec(), request, stream);
  }
  if (shows && !IsCapturing(stream)) {
    IBP_CUDA_CHECK(cudaMemcpyAsync(report_->seen_words(), request.counters_dev, kNumGatherCounters * sizeof(int64_t),
                                   cudaMemcpyDeviceToHost, stream));
  }
  return 0;
}

}  // namespace ibp
