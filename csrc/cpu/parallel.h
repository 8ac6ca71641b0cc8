// Splits a range of rows over threads that live for one call. A persistent pool (or OpenMP's) would be gone,
// and waited for, in a forked DataLoader worker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace ibp {

// Starts a thread that runs a function object. A parameter of ParallelFor so that a test can make it fail.
struct StartThread {
  template <typename Run>
  std::thread operator()(const Run& run) const {
    return std::thread(run);
  }
};

// Calls body(begin, end) on disjoint ranges that cover [0, n); range starts are multiples of `grain`. Ranges are
// not made smaller than kMinBytesPerThread of work. The first exception of a range is rethrown after all have ended.
// Where threads or the memory for them run out, the calling thread does what is left.
template <typename Body, typename Start = StartThread>
void ParallelFor(int64_t n, int64_t grain, int64_t bytes_per_item, int threads, const Body& body,
                 const Start& start = Start{}) {
  constexpr int64_t kMinBytesPerThread = int64_t{256} << 10;  // starting a thread costs about 20 us
  if (n <= 0) return;
  const int64_t worth = std::max<int64_t>(1, n * std::max<int64_t>(1, bytes_per_item) / kMinBytesPerThread);
  const int64_t grains = (n + grain - 1) / grain;
  const int64_t parts = std::max<int64_t>(1, std::min<int64_t>({int64_t{threads}, worth, grains}));
  if (parts == 1) return body(int64_t{0}, n);
  // All that the calls below need is allocated while no thread runs: an exception may leave from here.
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
  std::vector<std::thread> workers;
  workers.reserve(static_cast<size_t>(parts) - 1);
  auto run = [&](int64_t part) noexcept {
    const int64_t begin = grains * part / parts * grain;
    const int64_t end = std::min(n, grains * (part + 1) / parts * grain);
    try {
      body(begin, end);
    } catch (...) {
      errors[static_cast<size_t>(part)] = std::current_exception();
    }
  };
  int64_t started = 1;
  try {
    for (; started < parts; ++started) workers.push_back(start([&run, started] { run(started); }));
  } catch (...) {
    // No more threads (system_error), or no memory for one (bad_alloc). No work is lost: it is done here.
  }
  run(0);
  for (int64_t part = started; part < parts; ++part) run(part);
  for (std::thread& worker : workers) worker.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace ibp
