// Fails if a gather of the C API allocates where its header says that it does not.
#include <ibp.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

static long allocations = 0;

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main() {
  constexpr int64_t kRows = 3000, kValues = 4096, kIds = 250;  // rows of 16 KiB, an output below 4 MiB
  std::vector<float> rows(kRows * kValues), out(kIds * kValues);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 997) * 0.37f;
  for (const char* kind : {"dict", "ibp"}) {
    ibp_codec* codec = nullptr;
    ibp_rows* compressed = nullptr;
    ibp_sizes sizes;
    std::vector<int32_t> lengths(kRows);
    if (ibp_codec_fit(kind, IBP_FLOAT32, kValues, rows.data(), 100, kRows, 1, &codec) != IBP_OK) return 1;
    if (ibp_measure(codec, rows.data(), kRows, lengths.data(), 1) != IBP_OK) return 1;
    if (ibp_size(codec, lengths.data(), kRows, 0, &sizes) != IBP_OK) return 1;
    std::vector<char> slots(sizes.slots_bytes), bitmask(sizes.bitmask_bytes), overflow(sizes.overflow_bytes);
    std::vector<int64_t> workspace(sizes.workspace_bytes / 8), ids;
    for (int64_t i = 0; i < kIds; ++i) ids.push_back(i * 7 % kRows);
    if (ibp_compress(codec, rows.data(), lengths.data(), &sizes, slots.data(), bitmask.data(), overflow.data(),
                     workspace.data(), 1) != IBP_OK) {
      return 1;
    }
    if (ibp_rows_make(codec, &sizes, slots.data(), bitmask.data(), overflow.data(), &compressed) != IBP_OK) return 1;
    if (ibp_gather(compressed, ids.data(), kIds, out.data(), 1) != IBP_OK) return 1;  // chooses the code path once
    const long before = allocations;
    if (ibp_gather(compressed, ids.data(), kIds, out.data(), 1) != IBP_OK) return 1;
    std::printf("%s: %ld allocations in a gather, %ld before\n", kind, allocations - before, before);
    if (allocations != before || before == 0) return 1;
    ibp_rows_free(compressed);
    ibp_codec_free(codec);
  }
}
