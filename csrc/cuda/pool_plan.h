// Pooling that is done many times over the same tables: several features, looked up, decoded and pooled in one launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/gather_plan.h"
#include "cuda/pool_request.h"
#include "cuda/stage_rows.h"

namespace ibp {

struct PoolFeatureOptions {
  GatherPlan* plan = nullptr;  // of the table
  int32_t key = 0;             // see PoolFeature
  PoolMode mode = PoolMode::kSum;
  int64_t padding_id = -1;
  int64_t out_column_bytes = 0;
};

// Reads what the gather plans of its tables read, and does not keep it alive: whoever launches holds the plans. They
// wait at their end for what was launched here. Features of one kernel share a launch. Safe to use from several
// threads.
class PoolPlan {
 public:
  // Throws ArgumentError for a feature that no kernel decodes and pools at once (CanPool), and CudaError.
  PoolPlan(int device, const std::vector<PoolFeatureOptions>& features);
  PoolPlan(const PoolPlan&) = delete;
  PoolPlan& operator=(const PoolPlan&) = delete;
  ~PoolPlan();

  static bool CanPool(GatherPlan& plan);

  // What the kernels read of the features: the caller brings it to device memory, and passes that from then on.
  int64_t features_bytes() const { return static_cast<int64_t>(features_.size() * sizeof(PoolFeature)); }
  void WriteFeatures(uint8_t* out) const;

  // Misses that there are of all tables; 0: all their rows are in GPU memory.
  int64_t num_misses() const { return num_misses_; }
  // Of the sums of pieces, see PoolRequest.
  int64_t PieceBytes(int64_t num_ids) const {
    return piece_sets_ * PiecesOf(num_ids) * (int64_t{sizeof(float)} * most_values_ + int64_t{sizeof(int32_t)});
  }
  // For at most most_rows different rows, in so many parts.
  StageLayout Layout(int64_t most_rows, int32_t parts) const;
  // All in one part. scratch_dev: a multiple of 256, of layout.bytes, which has to outlive what reads the result.
  // Enqueues.
  StagedRows Stage(const uint8_t* features_dev, const PoolRequest& pool, const StageLayout& layout,
                   uint8_t* scratch_dev, cudaStream_t stream);
  // pieces_dev: PieceBytes. Enqueues. Returns at once if there are no bags.
  void Pool(const uint8_t* features_dev, PoolRequest pool, uint8_t* pieces_dev, cudaStream_t stream);
  // Stages, and pools what is there meanwhile, part by part: rows of the next part cross the link, on a stream of the
  // plan's, while those of this one are pooled on `stream`. Enqueues.
  void StageAndPool(const uint8_t* features_dev, PoolRequest pool, const StageLayout& layout, uint8_t* scratch_dev,
                    uint8_t* pieces_dev, cudaStream_t stream);

 private:
  class SideStream;
  struct KernelFeatures {
    GatherKernel kernel;
    int32_t first_feature;
    int32_t num_features;
  };

  void Launch(const uint8_t* features_dev, const PoolRequest& pool, cudaStream_t stream) const;
  PoolRequest WithPieces(PoolRequest pool, uint8_t* pieces_dev) const;

  const int device_;
  std::vector<PoolFeature> features_;  // kernel by kernel, and table by table
  std::vector<KernelFeatures> launches_;
  int64_t num_misses_ = 0, largest_slot_ = 0;
  int32_t most_values_ = 0, piece_sets_ = 1;
  const std::shared_ptr<StreamUses> uses_;
  std::mutex mutex_;  // of side_, while it is enqueued on
  std::unique_ptr<SideStream> side_;
};

}  // namespace ibp
