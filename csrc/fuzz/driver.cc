// What runs a fuzz target where the compiler has no libFuzzer, GCC for one: inputs are mutated, and those that reach
// new code are kept and mutated further. Much simpler than libFuzzer, and slower to get anywhere; enough for a check of
// minutes.
//
//   TARGET [-max_total_time=SECONDS] [-seed=N] [-artifact_prefix=PREFIX] FILE_OR_FOLDER...
//
// Runs the inputs of the files and folders first. With -max_total_time=0, the default, no others. If the target ends
// the process, the input is in PREFIXcrash.
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length);

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

constexpr size_t kMostBytes = 4096;
constexpr size_t kEdges = 1 << 16;

// How often each step from one place in the code to another was taken, places being hashed.
std::array<uint8_t, kEdges> taken, ever_taken;
uintptr_t place_before = 0;

const Bytes* running = nullptr;
std::string crash_path = "crash";

// Called by the sanitizers, and for SIGABRT: async-signal-safe calls alone, but for the file.
void KeepInput() {
  if (running == nullptr) return;
  if (std::FILE* file = std::fopen(crash_path.c_str(), "wb")) {
    std::fwrite(running->data(), 1, running->size(), file);
    std::fclose(file);
  }
  running = nullptr;
}

void OnSignal(int signal) {
  KeepInput();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Whether it took a step that none before has, or took one much more often.
bool Run(const Bytes& input) {
  taken.fill(0);
  place_before = 0;
  running = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  running = nullptr;
  bool is_new = false;
  for (size_t i = 0; i < kEdges; ++i) {
    if (taken[i] == 0) continue;
    // Counts by their order of magnitude, a bit each.
    const uint8_t magnitude = static_cast<uint8_t>(1 << std::min(7, 31 - __builtin_clz(taken[i])));
    is_new |= (ever_taken[i] & magnitude) == 0;
    ever_taken[i] |= magnitude;
  }
  return is_new;
}

Bytes Mutated(const std::vector<Bytes>& corpus, Random& random) {
  const auto below = [&](size_t end) { return static_cast<size_t>(random() % std::max<size_t>(end, 1)); };
  Bytes input = corpus.empty() ? Bytes() : corpus[below(corpus.size())];
  for (size_t left = 1 + below(6); left > 0; --left) {
    const size_t at = below(input.size() + 1), length = below(std::min<size_t>(32, input.size() - at) + 1);
    const auto from = input.begin() + static_cast<ptrdiff_t>(at), to = from + static_cast<ptrdiff_t>(length);
    switch (random() % 6) {
      case 0:
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1 << random() % 8);
        break;
      case 1:
        for (auto byte = from; byte != to; ++byte) *byte = static_cast<uint8_t>(random());
        break;
      case 2:
        std::fill(from, to, static_cast<uint8_t>(random() % 2 ? 0xff : 0));
        break;
      case 3:
        input.erase(from, to);
        break;
      case 4: {
        Bytes more(below(64) + 1);
        for (uint8_t& byte : more) byte = static_cast<uint8_t>(random());
        input.insert(from, more.begin(), more.end());
        break;
      }
      default: {  // the end of another one
        const Bytes& other = corpus[below(corpus.size())];
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(std::min(at, other.size())), other.end());
      }
    }
    input.resize(std::min(input.size(), kMostBytes));
  }
  input.shrink_to_fit();  // AddressSanitizer sees the first byte behind it
  return input;
}

}  // namespace

extern "C" __attribute__((no_sanitize("all"))) void __sanitizer_cov_trace_pc() {
  const uintptr_t place = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) * 0x9e3779b97f4a7c15u >> 40;
  uint8_t& count = taken[(place ^ place_before >> 1) % kEdges];
  if (count < 255) ++count;
  place_before = place;
}

int main(int argc, char** argv) {
  double seconds = 0;
  uint64_t seed = std::random_device()();
  std::vector<Bytes> corpus;
  size_t given = 0;
  __sanitizer_set_death_callback(&KeepInput);
  std::signal(SIGABRT, &OnSignal);
  const auto read = [&](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    Bytes input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    input.shrink_to_fit();
    Run(input);
    corpus.push_back(std::move(input));
    ++given;
  };
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&](const char* name) {
      const size_t length = std::strlen(name);
      return argument.compare(0, length, name) == 0 ? argument.c_str() + length : nullptr;
    };
    if (const char* text = value("-max_total_time=")) {
      seconds = std::atof(text);
    } else if (const char* text = value("-seed=")) {
      seed = std::strtoull(text, nullptr, 10);
    } else if (const char* text = value("-artifact_prefix=")) {
      crash_path = std::string(text) + "crash";
    } else if (argument[0] == '-') {
      std::fprintf(stderr, "want -max_total_time=, -seed=, -artifact_prefix=, files and folders, got %s\n", argv[i]);
      return 2;
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) read(entry.path());
    } else {
      read(argument);
    }
  }
  Random random(seed);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t runs = given;
  if (corpus.empty()) corpus.emplace_back();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
    Bytes input = Mutated(corpus, random);
    ++runs;
    if (Run(input)) corpus.push_back(std::move(input));
  }
  std::printf("seed %llu: %llu inputs, %zu of them given, %zu that reached new code\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(runs), given,
              corpus.size() - std::min(corpus.size(), given));
}
