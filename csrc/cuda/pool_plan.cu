#include <algorithm>
#include <cstring>
#include <map>

#include "cuda/cuda_check.h"
#include "cuda/dict_lanes/pool_units.h"
#include "cuda/pool_plan.h"

namespace ibp {
namespace {

// Few blocks saturate the link, and keep the addresses in flight close together.
constexpr int kFetchBlocks = 32;
// So many blocks one after the other in the place of each that the GPU holds: what is left over of each feature, and
// long bags, then even out.
constexpr int kRounds = 4;

}  // namespace

bool PoolPlan::CanPool(GatherPlan& plan) {
  const DeviceGuard guard(plan.device());
  PoolFeature feature;
  feature.rows = plan.request();
  return plan.codec().ChoosePool(feature).has_value();
}

PoolPlan::PoolPlan(int device, const std::vector<PoolFeatureOptions>& features)
    : device_(device), uses_(std::make_shared<StreamUses>(device)) {
  const DeviceGuard guard(device_);
  struct Chosen {
    PoolFeature feature;
    GatherKernel kernel;
    size_t launch, table;
  };
  std::vector<Chosen> chosen;
  std::map<int32_t, int32_t> features_of;        // by key
  std::map<const void*, size_t> launch_of;       // by kernel, in the order of its first feature
  std::map<const GatherPlan*, size_t> table_of;  // by plan, likewise
  for (const PoolFeatureOptions& options : features) {
    GatherPlan& plan = *options.plan;
    if (plan.device() != device_) Throw<ArgumentError>("plans: want them on GPU ", device_, ", got ", plan.device());
    PoolFeature feature;
    feature.rows = plan.request();
    const auto kernel = plan.codec().ChoosePool(feature);
    if (!kernel) Throw<ArgumentError>("plans: want rows that a kernel decodes and pools, got others");
    feature.key = options.key;
    feature.piece_set = features_of[options.key]++;
    piece_sets_ = std::max(piece_sets_, feature.piece_set + 1);
    feature.mode = options.mode;
    feature.padding_id = options.padding_id;
    feature.out_column_bytes = options.out_column_bytes;
    const size_t launch = launch_of.emplace(kernel->function, launch_of.size()).first->second;
    const size_t table = table_of.emplace(&plan, table_of.size()).first->second;
    chosen.push_back({feature, *kernel, launch, table});
    largest_slot_ = std::max<int64_t>(largest_slot_, feature.rows.slot_bytes);
    most_values_ = std::max(most_values_, feature.codec.layout.num_values);
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const Chosen& a, const Chosen& b) {
    return a.launch != b.launch ? a.launch < b.launch : a.table < b.table;
  });
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    PoolFeature& feature = chosen[i].feature;
    if (i > 0 && chosen[i].table == chosen[i - 1].table) {
      feature.first_miss = chosen[i - 1].feature.first_miss;
    } else {
      feature.first_miss = num_misses_;
      num_misses_ += CeilDiv(feature.rows.num_places - feature.rows.num_hit_places, 32) * 32;
    }
    if (i == 0 || chosen[i].launch != chosen[i - 1].launch) launches_.push_back({chosen[i].kernel, index, 0});
    KernelFeatures& launch = launches_.back();
    ++launch.num_features;
    if (chosen[i].kernel.shared_bytes > launch.kernel.shared_bytes) launch.kernel = chosen[i].kernel;
    features_.push_back(feature);
  }
  if (num_misses_ > kMaxMisses) {
    Throw<ArgumentError>("rows that are not cached: want at most ", kMaxMisses, " of all tables, got ", num_misses_);
  }
  for (const auto& [plan, table] : table_of) const_cast<GatherPlan*>(plan)->Follow(uses_);
}

void PoolPlan::WriteFeatures(uint8_t* out) const {
  std::memcpy(out, features_.data(), static_cast<size_t>(features_bytes()));
}

StageLayout PoolPlan::Layout(int64_t most_rows, int32_t parts) const {
  const DeviceGuard guard(device_);
  return StageLayout(num_misses_, largest_slot_, std::min(most_rows, num_misses_), parts);
}

StagedRows PoolPlan::Stage(const uint8_t* features_dev, const PoolRequest& pool, const StageLayout& layout,
                           uint8_t* scratch_dev, cudaStream_t stream) {
  CheckEqual("parts", 1, layout.parts);
  const DeviceGuard guard(device_);
  const StreamUses::RecordAtEnd record{*uses_, stream};
  const Staging staging(reinterpret_cast<const PoolFeature*>(features_dev), static_cast<int32_t>(features_.size()),
                        layout, scratch_dev);
  staging.Clear(stream);
  staging.List(pool, 0, stream);
  staging.Fetch(0, kFetchBlocks, stream);
  return staging.Rows(0);
}

PoolRequest PoolPlan::WithPieces(PoolRequest pool, uint8_t* pieces_dev) const {
  pool.piece_width = most_values_;
  pool.piece_sums_dev = reinterpret_cast<float*>(pieces_dev);
  pool.piece_counts_dev =
      reinterpret_cast<int32_t*>(pool.piece_sums_dev + piece_sets_ * PiecesOf(pool.num_ids) * most_values_);
  return pool;
}

void PoolPlan::Pool(const uint8_t* features_dev, PoolRequest pool, uint8_t* pieces_dev, cudaStream_t stream) {
  const DeviceGuard guard(device_);
  const StreamUses::RecordAtEnd record{*uses_, stream};
  Launch(features_dev, WithPieces(pool, pieces_dev), stream);
}

void PoolPlan::Launch(const uint8_t* features_dev, const PoolRequest& pool, cudaStream_t stream) const {
  if (pool.part_bags == 0) return;
  for (const KernelFeatures& launch : launches_) {
    // How many ids are of these features, and of this part of the bags, is known to the GPU alone.
    const double share = static_cast<double>(launch.num_features) / static_cast<double>(features_.size()) *
                         static_cast<double>(pool.part_bags) / static_cast<double>(pool.num_bags);
    const int64_t bag_units = kBagUnits * pool.part_bags * launch.num_features;
    const int64_t units = static_cast<int64_t>(share * static_cast<double>(pool.num_ids)) + bag_units;
    int32_t least_units = static_cast<int32_t>(std::clamp<int64_t>(
        CeilDiv(units, int64_t{kRounds} * launch.kernel.resident_blocks), kMinBlockUnits, kMaxBlockUnits));
    const int64_t blocks = CeilDiv(pool.num_ids + bag_units, least_units) + launch.num_features;
    const auto* features = reinterpret_cast<const PoolFeature*>(features_dev) + launch.first_feature;
    int32_t num_features = launch.num_features;
    PoolRequest request = pool;
    void* arguments[] = {&features, &num_features, &request, &least_units};
    IBP_CUDA_CHECK(cudaLaunchKernel(launch.kernel.function, dim3(static_cast<unsigned>(blocks)), dim3(kGatherThreads),
                                    arguments, launch.kernel.shared_bytes, stream));
  }
}

// Its work goes before that of others where both wait for the GPU: few blocks, which the link keeps waiting.
class PoolPlan::SideStream {
 public:
  SideStream() {
    int least = 0, greatest = 0;
    IBP_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    IBP_CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
    for (cudaEvent_t& event : events_) IBP_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~SideStream() {
    for (cudaEvent_t event : events_) {
      if (event) cudaEventDestroy(event);
    }
    cudaStreamDestroy(stream_);  // what is enqueued still runs
  }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  cudaStream_t stream() const { return stream_; }
  // Makes `later` wait for what `earlier` has to do now. number: below 2 * kMaxStageParts, one for each use in a call.
  void Order(cudaStream_t earlier, cudaStream_t later, int number) const {
    IBP_CUDA_CHECK(cudaEventRecord(events_[number], earlier));
    IBP_CUDA_CHECK(cudaStreamWaitEvent(later, events_[number], 0));
  }
  void Record(int number) const { IBP_CUDA_CHECK(cudaEventRecord(events_[number], stream_)); }
  void LetWait(cudaStream_t later, int number) const { IBP_CUDA_CHECK(cudaStreamWaitEvent(later, events_[number], 0)); }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2 * kMaxStageParts] = {};
};

PoolPlan::~PoolPlan() {
  if (side_ && uses_->OfAnotherProcess()) side_.release();  // a forked child has no CUDA
}

void PoolPlan::StageAndPool(const uint8_t* features_dev, PoolRequest pool, const StageLayout& layout,
                            uint8_t* scratch_dev, uint8_t* pieces_dev, cudaStream_t stream) {
  if (pool.num_bags == 0) return;
  const DeviceGuard guard(device_);
  const Staging staging(reinterpret_cast<const PoolFeature*>(features_dev), static_cast<int32_t>(features_.size()),
                        layout, scratch_dev);
  pool = WithPieces(pool, pieces_dev);
  const int parts = layout.parts;
  const auto of_part = [&](int part) {
    PoolRequest request = pool;
    request.first_bag = pool.num_bags * part / parts;
    request.part_bags = pool.num_bags * (part + 1) / parts - request.first_bag;
    for (int before = 0; before <= part; ++before) request.staged[before] = staging.Rows(before);
    request.num_staged = part + 1;
    return request;
  };
  // One part has nothing to fetch beside. A captured graph is not to have other calls' work in it.
  const bool beside = parts > 1 && !IsCapturing(stream);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (beside && !side_) side_ = std::make_unique<SideStream>();
  const StreamUses::RecordAtEnd record{*uses_, stream};
  if (!beside) {
    staging.Clear(stream);
    for (int part = 0; part < parts; ++part) {
      staging.List(of_part(part), part, stream);
      staging.Fetch(part, kFetchBlocks, stream);
      Launch(features_dev, of_part(part), stream);
    }
    return;
  }
  // On `stream`: list 0, list 1, pool 0, list 2, pool 1, ... Beside it: fetch 0, fetch 1, ..., each behind its list;
  // pooling waits for its fetch.
  try {
    staging.Clear(stream);
    for (int part = 0; part <= parts; ++part) {
      if (part < parts) {
        staging.List(of_part(part), part, stream);
        side_->Order(stream, side_->stream(), 2 * part);
        staging.Fetch(part, kFetchBlocks, side_->stream());
        side_->Record(2 * part + 1);
      }
      if (part > 0) {
        side_->LetWait(stream, 2 * (part - 1) + 1);
        Launch(features_dev, of_part(part - 1), stream);
      }
    }
  } catch (...) {
    cudaStreamSynchronize(side_->stream());  // it uses the caller's memory
    throw;
  }
}

}  // namespace ibp
