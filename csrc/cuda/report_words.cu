#include <mutex>
#include <vector>

#include "cuda/cuda_check.h"
#include "cuda/report_words.h"

namespace ibp {
namespace {

constexpr int kPageWords = 4096 / sizeof(int64_t);

struct Pool {
  std::mutex mutex;
  std::vector<volatile int64_t*> free;  // with room for all that there are: giving one back cannot fail
  size_t size = 0;
};

// Never destroyed: plans may outlive static objects.
Pool& ThePool() {
  static Pool* pool = new Pool;
  return *pool;
}

}  // namespace

ReportWords::ReportWords() {
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  if (pool.free.empty()) {
    pool.free.reserve(pool.size + kPageWords / kNumReportWords);
    void* page = nullptr;
    IBP_CUDA_CHECK(cudaHostAlloc(&page, kPageWords * sizeof(int64_t), cudaHostAllocPortable | cudaHostAllocMapped));
    for (int at = 0; at < kPageWords; at += kNumReportWords) {
      pool.free.push_back(static_cast<volatile int64_t*>(page) + at);
      ++pool.size;
    }
  }
  words_ = pool.free.back();
  pool.free.pop_back();
  for (int i = 0; i < kNumReportWords; ++i) words_[i] = 0;
}

ReportWords::~ReportWords() {
  Pool& pool = ThePool();
  const std::lock_guard<std::mutex> lock(pool.mutex);
  pool.free.push_back(words_);
}

}  // namespace ibp
