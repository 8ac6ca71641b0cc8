// A fuzzer's bytes, taken apart from the front. Past their end everything is 0, so that every input means something.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace ibp {

#define FUZZ_CHECK(condition)                                                       \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

using Bytes = std::vector<uint8_t>;  // allocated to its size, so that AddressSanitizer sees the first byte behind it

class FuzzInput {
 public:
  FuzzInput(const uint8_t* bytes, size_t length) : next_(bytes), left_(length) {}

  uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *next_++;
  }
  // low to high, both included; high - low at most 65535.
  int64_t Between(int64_t low, int64_t high) {
    const int64_t count = high - low + 1;
    const int64_t drawn = count <= 256 ? Byte() : Byte() | int64_t{Byte()} << 8;
    return low + drawn % count;
  }
  bool Flag() { return Byte() & 1; }
  // An integer of any bytes.
  template <typename Integer>
  Integer Any() {
    Integer value;
    uint8_t bytes[sizeof(Integer)];
    for (uint8_t& byte : bytes) byte = Byte();
    std::memcpy(&value, bytes, sizeof(Integer));
    return value;
  }
  void Fill(uint8_t* to, size_t length) {
    const size_t given = std::min(length, left_);
    if (given > 0) std::memcpy(to, next_, given);
    std::memset(to + given, 0, length - given);
    next_ += given;
    left_ -= given;
  }
  Bytes Of(int64_t length) {
    Bytes bytes(static_cast<size_t>(length));
    if (length > 0) Fill(bytes.data(), bytes.size());
    return bytes;
  }

 private:
  const uint8_t* next_;
  size_t left_;
};

}  // namespace ibp
