#include "cpu/rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "core/check.h"
#include "core/format.h"
#include "cpu/packing.h"
#include "cpu/parallel.h"
#include "cpu/row_stream.h"
#include "cpu/slot_block.h"

namespace ibp {
namespace {

constexpr int64_t kRowsPerBitmaskWord = 32;

// kSpread[b]: bit k of b in the low bit of byte k, so that eight counters are added at once.
constexpr std::array<uint64_t, 256> MakeSpread() {
  std::array<uint64_t, 256> spread{};
  for (int b = 0; b < 256; ++b) {
    for (int k = 0; k < 8; ++k) spread[b] |= static_cast<uint64_t>((b >> k) & 1) << (8 * k);
  }
  return spread;
}
constexpr std::array<uint64_t, 256> kSpread = MakeSpread();

[[noreturn]] void ThrowChanged(int64_t row) {
  Throw<ArgumentError>("row ", row,
                       ": its payload has another length than when it was measured: ", "the rows changed meanwhile");
}

// As EncodeRows, to the places that the directory has for the rows.
void EncodePackedRows(const RowCodec& codec, const RowOps& ops, const uint8_t* rows, int64_t num_rows,
                      int64_t first_row, const MutableSlots& out, int threads) {
  const int32_t row_bytes = codec.row_bytes;
  const auto* directory = reinterpret_cast<const PackedRecord*>(out.bitmask);
  ParallelFor(num_rows, 1, row_bytes, threads, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> scratch(static_cast<size_t>(codec.scratch_words));
    std::vector<uint8_t> copy(static_cast<size_t>(row_bytes));
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(copy.data(), rows + row * row_bytes, copy.size());  // read once, as in EncodeRows
      const PackedPlace place = PlaceOfRow(directory, row, out.packing, row_bytes);
      const int64_t start = place.start - out.first_start;
      if (start < 0 || start + place.bytes > out.packed_bytes) {
        Throw<ArgumentError>("directory: want places in ", out.packed_bytes, " bytes, got ", start, " for row ",
                             first_row + row);
      }
      const int32_t payload_bytes = ops.measure(codec, copy.data(), scratch.data());
      const PackedLength length = LengthOf(payload_bytes, row_bytes, out.slot_bytes, out.packing);
      if (length.is_payload != place.is_payload || length.bytes != place.bytes) ThrowChanged(first_row + row);
      uint8_t* to = out.slots + start;
      if (place.is_payload) {
        ops.encode(codec, copy.data(), scratch.data(), to, payload_bytes);
      } else {
        std::memcpy(to, copy.data(), copy.size());
      }
      const int64_t written = place.is_payload ? payload_bytes : row_bytes;
      std::memset(to + written, 0, static_cast<size_t>(place.bytes - written));
    }
  });
}

}  // namespace

void CountOnes(const uint8_t* rows, int64_t num_rows, int64_t row_bytes, int64_t* ones, int threads) {
  std::fill_n(ones, 8 * row_bytes, int64_t{0});
  std::mutex merge;
  ParallelFor(num_rows, 1, row_bytes, threads, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> mine(static_cast<size_t>(8 * row_bytes), 0);
    std::vector<uint64_t> counters(static_cast<size_t>(row_bytes));
    for (int64_t block = begin; block < end; block += 255) {  // a byte counter holds at most 255
      std::fill(counters.begin(), counters.end(), 0);
      for (int64_t row = block; row < std::min(end, block + 255); ++row) {
        const uint8_t* bytes = rows + row * row_bytes;
        for (int64_t i = 0; i < row_bytes; ++i) counters[static_cast<size_t>(i)] += kSpread[bytes[i]];
      }
      for (int64_t i = 0; i < row_bytes; ++i) {
        for (int k = 0; k < 8; ++k) {
          mine[static_cast<size_t>(8 * i + k)] += (counters[static_cast<size_t>(i)] >> (8 * k)) & 255;
        }
      }
    }
    const std::lock_guard<std::mutex> lock(merge);
    for (int64_t k = 0; k < 8 * row_bytes; ++k) ones[k] += mine[static_cast<size_t>(k)];
  });
}

void MeasureRows(const RowCodec& codec, const CodePath& path, const uint8_t* rows, int64_t num_rows,
                 int32_t* payload_bytes, int threads) {
  const int64_t row_bytes = codec.row_bytes;
  const RowOps& ops = codec.Ops(path);
  ParallelFor(num_rows, 1, row_bytes, threads, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> scratch(static_cast<size_t>(codec.scratch_words));
    for (int64_t row = begin; row < end; ++row) {
      payload_bytes[row] = ops.measure(codec, rows + row * row_bytes, scratch.data());
    }
  });
}

void EncodeRows(const RowCodec& codec, const CodePath& path, const uint8_t* rows, int64_t num_rows,
                const int64_t* overflow_index, int64_t first_row, const MutableSlots& out, int threads) {
  const int32_t row_bytes = codec.row_bytes;
  const RowOps& ops = codec.Ops(path);
  if (out.packing.is_packed()) return EncodePackedRows(codec, ops, rows, num_rows, first_row, out, threads);
  const bool slots_hold_rows = out.slot_bytes >= row_bytes;
  std::fill_n(out.bitmask, BitmaskBytes(num_rows), uint8_t{0});  // null where there are no rows
  // Whole bitmask words per thread, so that no two threads write the same byte.
  ParallelFor(num_rows, kRowsPerBitmaskWord, row_bytes, threads, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> scratch(static_cast<size_t>(codec.scratch_words));
    std::vector<uint8_t> copy(static_cast<size_t>(row_bytes));
    for (int64_t row = begin; row < end; ++row) {
      // Encoding writes as much as measuring found: both have to see the same bytes.
      std::memcpy(copy.data(), rows + row * row_bytes, copy.size());
      uint8_t* slot = out.slots + row * out.slot_bytes;
      int32_t written = 0;  // bytes of the slot
      const int32_t payload_bytes = ops.measure(codec, copy.data(), scratch.data());
      const bool fits = payload_bytes < row_bytes && payload_bytes <= out.slot_bytes;
      const int64_t index = slots_hold_rows ? -1 : overflow_index[row];
      if (!slots_hold_rows && fits != (index < 0)) {
        ThrowChanged(first_row + row);
      }
      if (fits) {
        ops.encode(codec, copy.data(), scratch.data(), slot, payload_bytes);
        written = payload_bytes;
        out.bitmask[row >> 3] |= static_cast<uint8_t>(1 << (row & 7));
      } else if (slots_hold_rows) {
        std::memcpy(slot, copy.data(), copy.size());
        written = row_bytes;
      } else {
        const int64_t place = index - out.first_overflow;
        if (place < 0 || place >= out.num_overflow) {
          Throw<ArgumentError>("overflow_index: want ", out.first_overflow, " to ",
                               out.first_overflow + out.num_overflow - 1, " or a negative number, got ", index,
                               " for row ", first_row + row);
        }
        const uint32_t stored = static_cast<uint32_t>(index);
        std::memcpy(slot, &stored, kOverflowIndexBytes);
        std::memcpy(out.overflow + place * row_bytes, copy.data(), copy.size());
        written = kOverflowIndexBytes;
      }
      std::memset(slot + written, 0, static_cast<size_t>(out.slot_bytes - written));
    }
  });
}

void DecodeRows(const RowCodec& codec, const CodePath& path, const SlotRows& rows, const int32_t* slot_of,
                const int64_t* ids, int64_t num_ids, uint8_t* out, int threads) {
  constexpr int64_t kStreamedBytes = int64_t{4} << 20;  // outputs that the caches nearest to a core would not hold
  const int32_t row_bytes = codec.row_bytes;
  const RowOps& ops = codec.Ops(path);
  const bool streams = num_ids * row_bytes >= kStreamedBytes;
  ParallelFor(num_ids, 1, row_bytes, threads, [&](int64_t begin, int64_t end) {
    RowStream stream(path, out + begin * row_bytes, row_bytes, streams);
    SlotBlock::Room room;
    SlotBlock block(rows, room);
    int64_t block_ids[SlotBlock::kMaxRows];
    for (int64_t first = begin; first < end; first += block.capacity()) {
      const int64_t count = std::min(block.capacity(), end - first);
      block.FetchAll(slot_of, ids + first, count, end - first, block_ids);
      for (int64_t i = 0; i < count; ++i) {
        block.Decode(codec, ops, i, block_ids[i], stream.Next());
        stream.Done();
      }
    }
  });
}

int64_t FirstBadId(const int64_t* ids, int64_t num_ids, int64_t num_rows) {
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] < 0 || ids[i] >= num_rows) return i;
  }
  return -1;
}

}  // namespace ibp
