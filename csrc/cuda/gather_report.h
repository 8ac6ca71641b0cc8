// What gathers tell the host without its waiting for them.
#pragma once

#include <cstdint>
#include <mutex>

#include "cuda/gather_request.h"
#include "cuda/report_words.h"

namespace ibp {

// Of all gathers of a plan and of the plans that follow it: the first bad row, and the counters as they were when a
// gather that was told to show them had run. Safe to use from several threads.
class GatherReport {
 public:
  static constexpr int64_t kShowEveryIds = 32768;  // the counters are shown again after so many

  // misses_at_first: the miss rate that is assumed before a gather has shown one.
  explicit GatherReport(double misses_at_first) : miss_rate_(misses_at_first) {}

  int64_t error() const { return words_.words()[kErrorWord]; }
  int64_t error_id() const { return words_.words()[kErrorWord + 1]; }
  void ClearError() { words_.words()[kErrorWord] = kNoError; }

  // Of the gathers since it was asked last, as far as they have run and were shown; of earlier ones if none has.
  double MissRate();
  // Counts ids that are about to be gathered. Whether that gather should show the counters.
  bool ShouldShow(int64_t num_ids);

  // Where kernels and copies write to: int64 [2], and [kNumGatherCounters].
  int64_t* error_words() const { return const_cast<int64_t*>(words_.words() + kErrorWord); }
  int64_t* seen_words() const { return const_cast<int64_t*>(words_.words() + kSeenWord); }

 private:
  static constexpr int kErrorWord = 0, kSeenWord = 2;
  static_assert(kSeenWord + kNumGatherCounters <= ReportWords::kNumReportWords);

  ReportWords words_;
  std::mutex mutex_;
  int64_t unseen_ids_ = 0;  // gathered since the counters were shown
  int64_t last_hits_ = 0, last_misses_ = 0;
  double miss_rate_;
};

}  // namespace ibp
