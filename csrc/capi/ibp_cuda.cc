// The part of ibp.h that gathers with a CUDA kernel.
#include <memory>
#include <vector>

#include "capi/handles.h"
#include "capi/status.h"
#include "cuda/cuda_check.h"
#include "cuda/gather_plan.h"
#include "cuda/order_ids.h"
#include "include/ibp.h"

namespace ibp {
namespace {

// As in ibp_gnn/codec/gather.py and the forms beside it, with the measurements that decided.
constexpr int64_t kOrderFromBytes = int64_t{3} << 28;
constexpr int64_t kOrderFromMisses = 4096;

int MissBlocks(const CodecDescription& codec) { return codec.kind == "ibp" ? 64 : codec.zero_code ? 32 : 16; }

template <typename Call>
ibp_status GuardedCuda(const Call& call) noexcept {
  return Guarded([&] {
    try {
      return call();
    } catch (const CudaError& error) {
      return Fail(IBP_CUDA_ERROR, error.what());
    }
  });
}

PlanSegment Segment(const ibp_device_rows& rows, bool hits) {
  CheckNotNull("slots", rows.slots);
  CheckNotNull("overflow", rows.overflow);
  if (rows.sizes.num_rows > 0) CheckNotNull("bitmask", rows.bitmask);
  PlanSegment segment;
  segment.rows = {static_cast<const uint8_t*>(rows.slots),
                  rows.sizes.slots_bytes,
                  static_cast<const uint32_t*>(rows.bitmask),
                  rows.sizes.bitmask_bytes,
                  static_cast<const uint8_t*>(rows.overflow),
                  rows.sizes.overflow_bytes,
                  rows.sizes.num_rows};
  segment.hits = hits;
  return segment;
}

}  // namespace
}  // namespace ibp

using namespace ibp;

struct ibp_plan {
  std::shared_ptr<GatherReport> report;
  std::unique_ptr<GatherPlan> plan;
};

ibp_status ibp_plan_make(const ibp_codec* codec, const ibp_plan_options* options, ibp_plan** plan) {
  return GuardedCuda([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("options", options);
    CheckNotNull("tables", options->tables);
    CheckNotNull("counters", options->counters);
    CheckNotNull("plan", plan);
    const DeviceGuard guard(options->device);
    std::vector<PlanSegment> segments;
    const ibp_sizes& sizes = options->rows.sizes;
    int64_t cached = 0;
    if (options->cache != nullptr) {
      CheckEqual("slot_bytes of the cache", sizes.slot_bytes, options->cache->sizes.slot_bytes);
      cached = options->cache->sizes.num_rows;
      if (cached > sizes.num_rows) {
        Throw<ArgumentError>("rows of the cache: want at most ", sizes.num_rows, ", got ", cached);
      }
      segments.push_back(Segment(*options->cache, true));
    }
    segments.push_back(Segment(options->rows, false));
    segments.back().first_place = cached;
    PlanOptions of_plan;
    of_plan.slot_bytes = sizes.slot_bytes;
    of_plan.lead_bytes = sizes.lead_bytes == 0 ? sizes.slot_bytes : sizes.lead_bytes;
    of_plan.num_rows = sizes.num_rows;
    of_plan.counters_dev = options->counters;
    of_plan.miss_blocks = MissBlocks(codec->description);
    of_plan.order_from_bytes = kOrderFromBytes;
    of_plan.order_from_misses = kOrderFromMisses;
    auto gpu_codec = MakeGpuCodec(codec->description.kind.c_str(), codec->description.Parameters(),
                                  static_cast<const uint8_t*>(options->tables), options->table_bytes);
    auto made = std::make_unique<ibp_plan>();
    made->report = std::make_shared<GatherReport>(cached < sizes.num_rows ? 1.0 : 0.0);
    made->plan =
        std::make_unique<GatherPlan>(options->device, std::move(gpu_codec), segments, of_plan, made->report, nullptr);
    *plan = made.release();
    return IBP_OK;
  });
}

void ibp_plan_free(ibp_plan* plan) { delete plan; }

ibp_status ibp_plan_workspace_bytes(const ibp_plan* plan, int64_t num_ids, int64_t* num_bytes) {
  return GuardedCuda([&] {
    CheckNotNull("plan", plan);
    CheckNotNull("num_bytes", num_bytes);
    CheckAtLeast("num_ids", 0, num_ids);
    const GatherPlan& of_rows = *plan->plan;
    const bool may_order = of_rows.ordering_pays() && num_ids >= kOrderFromMisses && of_rows.num_places() < UINT32_MAX;
    const DeviceGuard guard(of_rows.device());
    *num_bytes = may_order ? OrderScratchBytes(of_rows.request(), std::min(num_ids, kMaxIdsPerLaunch)) : 0;
    return IBP_OK;
  });
}

ibp_status ibp_plan_gather(ibp_plan* plan, const void* ids, int ids_are_int64, int64_t num_ids, void* out,
                           void* workspace, int64_t workspace_bytes, void* stream) {
  return GuardedCuda([&] {
    CheckNotNull("plan", plan);
    CheckAtLeast("num_ids", 0, num_ids);
    if (num_ids > 0) {
      CheckNotNull("ids", ids);
      CheckNotNull("out", out);
    }
    if (reinterpret_cast<uintptr_t>(workspace) % IBP_WORKSPACE_ALIGN != 0) {
      Throw<ArgumentError>("workspace: want it at a multiple of ", IBP_WORKSPACE_ALIGN, " bytes");
    }
    const int64_t wanted = plan->plan->Gather(
        ids, ids_are_int64 != 0, num_ids, static_cast<uint8_t*>(out), {}, static_cast<uint8_t*>(workspace),
        workspace == nullptr ? 0 : workspace_bytes, static_cast<cudaStream_t>(stream));
    if (wanted == 0) return IBP_OK;
    return Fail(IBP_WORKSPACE, Message("workspace: want ", wanted, " bytes, got ", workspace_bytes).c_str());
  });
}

ibp_status ibp_plan_check(ibp_plan* plan, int64_t* bad_id) {
  return GuardedCuda([&] {
    CheckNotNull("plan", plan);
    CheckNotNull("bad_id", bad_id);
    const int64_t error = plan->report->error();
    if (error == kNoError) return IBP_OK;
    *bad_id = plan->report->error_id();
    plan->report->ClearError();
    if (error == kIdOutOfRange) {
      Throw<std::out_of_range>("ids: want 0 <= id < ", plan->plan->request().num_rows, ", got ", *bad_id,
                               " in an earlier gather, which gave zeros for it");
    }
    Throw<FormatError>("row ", *bad_id, " is damaged: an earlier gather gave zeros for it");
  });
}
