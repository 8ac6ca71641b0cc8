// Writes rows one after the other to memory that is not read again soon. Ordinary stores first read every cache line
// that they write, which for rows from memory is half of the traffic; here rows are made in a small buffer and leave it
// by whole lines, past the caches.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/row_ops.h"

namespace ibp {

class RowStream {
 public:
  // streams: false = rows are written where they belong at once, as for outputs that fit the caches.
  RowStream(const CodePath& path, uint8_t* out, int32_t row_bytes, bool streams)
      : stream_lines_(path.stream_lines), row_bytes_(row_bytes), out_(out), streams_(streams) {
    if (!streams) return;
    filled_ = kept_ = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLineBytes);
    out_ -= filled_;
    buffer_.resize(static_cast<size_t>(kFlushBytes + row_bytes + 2 * kLineBytes));
    buffer_start_ = buffer_.data() + (kLineBytes - reinterpret_cast<uintptr_t>(buffer_.data()) % kLineBytes);
  }
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;
  ~RowStream() {
    if (!streams_) return;
    Flush();
    std::memcpy(out_ + kept_, buffer_start_ + kept_, static_cast<size_t>(filled_ - kept_));
  }

  // Where the next row is to be written; Done once it is.
  uint8_t* Next() { return streams_ ? buffer_start_ + filled_ : out_; }
  void Done() {
    if (!streams_) {
      out_ += row_bytes_;
      return;
    }
    filled_ += row_bytes_;
    if (filled_ >= kFlushBytes) Flush();
  }

 private:
  static constexpr int64_t kLineBytes = 64, kFlushBytes = 4096;

  // Moves whole lines out; of the first one only what is ours.
  void Flush() {
    const int64_t whole = filled_ / kLineBytes * kLineBytes;
    if (whole == 0) return;
    int64_t at = 0;
    if (kept_ > 0) {
      std::memcpy(out_ + kept_, buffer_start_ + kept_, static_cast<size_t>(kLineBytes - kept_));
      at = kLineBytes;
      kept_ = 0;
    }
    stream_lines_(out_ + at, buffer_start_ + at, whole - at);
    std::memmove(buffer_start_, buffer_start_ + whole, static_cast<size_t>(filled_ - whole));
    filled_ -= whole;
    out_ += whole;
  }

  void (*const stream_lines_)(uint8_t*, const uint8_t*, int64_t);
  const int32_t row_bytes_;
  uint8_t* out_;  // of the buffer's first byte, a line's start; or of the next row
  const bool streams_;
  std::vector<uint8_t> buffer_;
  uint8_t* buffer_start_ = nullptr;
  int64_t filled_ = 0;
  int64_t kept_ = 0;  // leading bytes of the first line that belong to somebody else
};

}  // namespace ibp
