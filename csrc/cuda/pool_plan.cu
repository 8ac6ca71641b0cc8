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
    Launch& launch = launches_.back();
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

StageLayout PoolPlan::Staging(int64_t most_rows) const {
  const DeviceGuard guard(device_);
  return StageLayout(num_misses_, largest_slot_, std::min(most_rows, num_misses_));
}

StagedRows PoolPlan::Stage(const uint8_t* features_dev, const PoolRequest& pool, const StageLayout& layout,
                           uint8_t* scratch_dev, cudaStream_t stream) {
  const DeviceGuard guard(device_);
  const StreamUses::RecordAtEnd record{*uses_, stream};
  return LaunchStage(reinterpret_cast<const PoolFeature*>(features_dev), static_cast<int32_t>(features_.size()), pool,
                     layout, scratch_dev, kFetchBlocks, stream);
}

void PoolPlan::Pool(const uint8_t* features_dev, PoolRequest pool, uint8_t* pieces_dev, cudaStream_t stream) {
  if (pool.num_bags == 0) return;
  pool.piece_width = most_values_;
  pool.piece_sums_dev = reinterpret_cast<float*>(pieces_dev);
  pool.piece_counts_dev =
      reinterpret_cast<int32_t*>(pool.piece_sums_dev + piece_sets_ * PiecesOf(pool.num_ids) * most_values_);
  const DeviceGuard guard(device_);
  const StreamUses::RecordAtEnd record{*uses_, stream};
  for (const Launch& launch : launches_) {
    // How many ids are of these features is known to the GPU alone.
    const int64_t bag_units = kBagUnits * pool.num_bags * launch.num_features;
    const int64_t share = pool.num_ids * launch.num_features / static_cast<int64_t>(features_.size());
    int32_t units_per_block = static_cast<int32_t>(
        std::clamp<int64_t>(CeilDiv(share + bag_units, launch.kernel.resident_blocks), kMinBlockUnits, kMaxBlockUnits));
    const int64_t blocks = CeilDiv(pool.num_ids + bag_units, units_per_block) + launch.num_features;
    const auto* features = reinterpret_cast<const PoolFeature*>(features_dev) + launch.first_feature;
    int32_t num_features = launch.num_features;
    void* arguments[] = {&features, &num_features, &pool, &units_per_block};
    IBP_CUDA_CHECK(cudaLaunchKernel(launch.kernel.function, dim3(static_cast<unsigned>(blocks)), dim3(kGatherThreads),
                                    arguments, launch.kernel.shared_bytes, stream));
  }
}

}  // namespace ibp
