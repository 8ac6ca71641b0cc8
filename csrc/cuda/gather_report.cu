#include "cuda/gather_report.h"

namespace ibp {

double GatherReport::MissRate() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const volatile int64_t* seen = words_.words() + kSeenWord;
  const int64_t hits = seen[kHits], misses = seen[kMisses];
  const int64_t new_hits = hits - last_hits_, new_misses = misses - last_misses_;
  if (new_hits >= 0 && new_misses >= 0 && new_hits + new_misses > 0) {  // less where the counters were set back
    miss_rate_ = static_cast<double>(new_misses) / static_cast<double>(new_hits + new_misses);
  }
  last_hits_ = hits;
  last_misses_ = misses;
  return miss_rate_;
}

bool GatherReport::ShouldShow(int64_t num_ids) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unseen_ids_ += num_ids;
  if (unseen_ids_ < kShowEveryIds) return false;
  unseen_ids_ = 0;
  return true;
}

}  // namespace ibp
