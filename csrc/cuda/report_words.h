// Page-locked words that kernels write and the host reads without waiting.
#pragma once

#include <cstdint>

namespace ibp {

// kNumReportWords int64, zeros at first, readable and writable by the host and by every GPU at one address. Let go of
// only when no kernel writes them any more. The memory itself is never given back to the system, so that making and
// dropping plans neither waits for the GPU nor makes the process grow.
class ReportWords {
 public:
  static constexpr int kNumReportWords = 8;

  // Throws CudaError if the system refuses page-locked memory.
  ReportWords();
  ~ReportWords();
  ReportWords(const ReportWords&) = delete;
  ReportWords& operator=(const ReportWords&) = delete;

  volatile int64_t* words() const { return words_; }

 private:
  volatile int64_t* words_ = nullptr;
};

}  // namespace ibp
