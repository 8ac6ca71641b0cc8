// Rows that are compressed on the CPU, gathered by a CUDA kernel from page-locked CPU memory and from GPU memory: raw
// pointers and a stream, and no other library than CUDA's runtime.
#include <cuda_runtime_api.h>
#include <ibp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kRows = 200'000, kCached = 32'000, kValues = 128, kIds = 50'000;
constexpr int kNoGpu = 77;

void Check(ibp_status status, const char* call) {
  if (status == IBP_OK) return;
  std::fprintf(stderr, "%s: %s\n", call, ibp_error_message());
  std::exit(1);
}

void Check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
  std::exit(1);
}

#define CHECK(call) Check((call), #call)

template <typename T>
T* OnDevice(const void* from, int64_t bytes) {
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  if (from != nullptr) CHECK(cudaMemcpy(memory, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

uint8_t* PageLocked(int64_t bytes) {
  void* memory = nullptr;
  CHECK(cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable));
  return static_cast<uint8_t*>(memory);
}

// Compresses to page-locked memory.
ibp_device_rows Compressed(const ibp_codec* codec, const float* rows, int64_t num_rows, int64_t slot_bytes,
                           std::vector<uint8_t>& bitmask) {
  std::vector<int32_t> payload_bytes(static_cast<size_t>(num_rows));
  ibp_device_rows made = {};
  CHECK(ibp_measure(codec, rows, num_rows, payload_bytes.data(), 2));
  CHECK(ibp_size(codec, payload_bytes.data(), num_rows, slot_bytes, &made.sizes));
  uint8_t* slots = PageLocked(made.sizes.slots_bytes);
  uint8_t* overflow = PageLocked(made.sizes.overflow_bytes);
  bitmask.resize(static_cast<size_t>(made.sizes.bitmask_bytes));
  std::vector<int64_t> workspace(static_cast<size_t>(made.sizes.workspace_bytes / 8));
  CHECK(ibp_compress(codec, rows, payload_bytes.data(), &made.sizes, slots, bitmask.data(), overflow, workspace.data(),
                     2));
  made.bitmask = OnDevice<void>(bitmask.data(), made.sizes.bitmask_bytes);
  made.slots = slots;  // mapped memory has one address on both sides
  made.overflow = overflow;
  return made;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU\n");
    return kNoGpu;
  }
  std::vector<float> rows(static_cast<size_t>(kRows * kValues));
  uint32_t state = 1;
  for (float& value : rows) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / 16777216.0f - 0.5f;
  }
  std::memset(rows.data() + 5 * kValues, 0x7f, sizeof(float) * kValues);  // NaNs
  ibp_codec* codec = nullptr;
  CHECK(ibp_codec_fit("dict", IBP_FLOAT32, kValues, rows.data(), 8192, kRows, 2, &codec));
  std::vector<uint8_t> tables(static_cast<size_t>(ibp_codec_table_bytes(codec)));
  CHECK(ibp_codec_write_tables(codec, tables.data(), static_cast<int64_t>(tables.size())));

  ibp_plan_options options = {};
  options.tables = OnDevice<void>(tables.data(), static_cast<int64_t>(tables.size()));
  options.table_bytes = static_cast<int64_t>(tables.size());
  const std::vector<int64_t> zeros(IBP_NUM_COUNTERS);
  options.counters = OnDevice<int64_t>(zeros.data(), IBP_NUM_COUNTERS * 8);
  std::vector<uint8_t> bitmask;
  options.rows = Compressed(codec, rows.data(), kRows, 0, bitmask);
  // The first rows are the hottest ones: they lie in GPU memory, too.
  std::vector<uint8_t> of_cache;
  ibp_device_rows cache = Compressed(codec, rows.data(), kCached, options.rows.sizes.slot_bytes, of_cache);
  cache.slots = OnDevice<void>(cache.slots, cache.sizes.slots_bytes);
  cache.overflow = OnDevice<void>(cache.overflow, cache.sizes.overflow_bytes);
  options.cache = &cache;
  ibp_plan* plan = nullptr;
  CHECK(ibp_plan_make(codec, &options, &plan));

  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int64_t workspace_bytes = 0;
  CHECK(ibp_plan_workspace_bytes(plan, kIds, &workspace_bytes));
  void* workspace = workspace_bytes > 0 ? OnDevice<void>(nullptr, workspace_bytes) : nullptr;
  float* out_dev = OnDevice<float>(nullptr, kIds * kValues * 4);
  std::vector<float> out(static_cast<size_t>(kIds * kValues));
  for (const bool wide : {false, true}) {
    std::vector<int64_t> ids(static_cast<size_t>(kIds));
    std::vector<int32_t> narrow;
    for (int64_t i = 0; i < kIds; ++i) {
      ids[static_cast<size_t>(i)] = i * 7919 % (i % 2 == 0 ? kCached : kRows);
      narrow.push_back(static_cast<int32_t>(ids[static_cast<size_t>(i)]));
    }
    const void* ids_dev = wide ? OnDevice<void>(ids.data(), kIds * 8) : OnDevice<void>(narrow.data(), kIds * 4);
    CHECK(ibp_plan_gather(plan, ids_dev, wide, kIds, out_dev, workspace, workspace_bytes, stream));
    CHECK(cudaMemcpyAsync(out.data(), out_dev, out.size() * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int64_t i = 0; i < kIds; ++i) {
      if (std::memcmp(out.data() + i * kValues, rows.data() + ids[static_cast<size_t>(i)] * kValues, kValues * 4) !=
          0) {
        std::fprintf(stderr, "row %lld differs\n", static_cast<long long>(ids[static_cast<size_t>(i)]));
        return 1;
      }
    }
    int64_t bad_id = 0;
    CHECK(ibp_plan_check(plan, &bad_id));
  }
  int64_t counters[IBP_NUM_COUNTERS];
  CHECK(cudaMemcpy(counters, options.counters, sizeof counters, cudaMemcpyDeviceToHost));
  std::printf("%lld hits, %lld misses, %lld bytes read from CPU memory\n", static_cast<long long>(counters[0]),
              static_cast<long long>(counters[1]), static_cast<long long>(counters[2]));
  if (counters[0] + counters[1] != 2 * kIds || counters[0] < kIds) return 1;

  // A number that no row has gives zeros, and is told of.
  const int64_t bad[] = {1, kRows, 2};
  CHECK(ibp_plan_gather(plan, OnDevice<void>(bad, sizeof bad), 1, 3, out_dev, workspace, workspace_bytes, stream));
  CHECK(cudaMemcpyAsync(out.data(), out_dev, 3 * kValues * 4, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  int64_t bad_id = 0;
  if (ibp_plan_check(plan, &bad_id) != IBP_BAD_ID || bad_id != kRows) return 1;
  std::printf("as it should: %s\n", ibp_error_message());
  const std::vector<float> zero_row(static_cast<size_t>(kValues));
  if (std::memcmp(out.data() + kValues, zero_row.data(), kValues * 4) != 0) return 1;
  if (std::memcmp(out.data() + 2 * kValues, rows.data() + 2 * kValues, kValues * 4) != 0) return 1;

  ibp_plan_free(plan);  // waits for its gathers; then the memory may go
  ibp_codec_free(codec);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaDeviceReset());
  return 0;
}
