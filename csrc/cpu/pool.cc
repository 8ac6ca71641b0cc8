#include "cpu/pool.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/float_values.h"
#include "cpu/parallel.h"
#include "cpu/slot_block.h"

namespace ibp {
namespace {

// Rows or pieces that are pooled one after the other.
class Pooled {
 public:
  Pooled(int64_t width, PoolMode mode) : mode_(mode), values_(static_cast<size_t>(width)) {}

  void Clear() {
    std::fill(values_.begin(), values_.end(), 0.0f);
    count_ = 0;
  }
  // values: [width], of a row (count 1), or of a piece of `count` rows.
  void Add(const float* values, int64_t count) {
    if (count == 0) return;
    float* const to = values_.data();
    const size_t width = values_.size();
    if (mode_ != PoolMode::kMax) {
      for (size_t i = 0; i < width; ++i) to[i] += values[i];
    } else if (count_ == 0) {
      std::copy_n(values, width, to);
    } else {
      for (size_t i = 0; i < width; ++i) to[i] = PoolMax(to[i], values[i]);
    }
    count_ += count;
  }
  void AddWeighted(const float* values, float weight) {
    float* const to = values_.data();
    for (size_t i = 0; i < values_.size(); ++i) to[i] += weight * values[i];  // not contracted: see CMakeLists.txt
    ++count_;
  }
  void Add(const Pooled& piece) { Add(piece.values_.data(), piece.count_); }

  template <PoolType kType>
  void Write(uint8_t* out) const {
    using Value = PooledValue<kType>;
    using Word = typename Value::Word;
    const float divisor = mode_ == PoolMode::kMean && count_ > 0 ? static_cast<float>(count_) : 1.0f;
    for (size_t i = 0; i < values_.size(); ++i) {
      const float value = values_[i] / divisor;
      const Word word = value == value ? Value::Round(value) : static_cast<Word>(CanonicalNan(kType));
      std::memcpy(out + i * sizeof(Word), &word, sizeof(Word));
    }
  }

 private:
  const PoolMode mode_;
  std::vector<float> values_;
  int64_t count_ = 0;
};

template <PoolType kType>
void PoolBags(const RowCodec& codec, const RowOps& ops, const SlotRows& rows, const int32_t* slot_of, const Bags& bags,
              int64_t first_bag, int64_t end_bag, uint8_t* out) {
  using Value = PooledValue<kType>;
  using Word = typename Value::Word;
  const int64_t width = codec.row_bytes / static_cast<int64_t>(sizeof(Word));
  std::vector<Word> row(static_cast<size_t>(width));
  std::vector<float> values(static_cast<size_t>(width));
  Pooled piece(width, bags.mode), whole(width, bags.mode);
  SlotBlock::Room room;
  SlotBlock block(rows, room);
  int64_t block_ids[SlotBlock::kMaxRows], in_block = 0, block_at = 0;
  int64_t at = bags.offsets[first_bag];
  const int64_t end = bags.offsets[end_bag];
  for (int64_t bag = first_bag; bag < end_bag; ++bag) {
    const int64_t bag_start = at, bag_ids = bags.offsets[bag + 1] - bag_start, pieces = NumPieces(bag_ids);
    whole.Clear();
    for (int64_t p = 0; p < pieces; ++p) {
      Pooled& pooled = pieces == 1 ? whole : piece;
      pooled.Clear();
      for (const int64_t piece_end = bag_start + PieceEnd(bag_ids, p); at < piece_end; ++at, ++block_at) {
        if (block_at == in_block) {
          in_block = std::min(block.capacity(), end - at);
          block.FetchAll(slot_of, bags.ids + at, in_block, end - at, block_ids);
          block_at = 0;
        }
        const int64_t id = block_ids[block_at];
        if (id == bags.padding_id) continue;
        block.Decode(codec, ops, block_at, id, reinterpret_cast<uint8_t*>(row.data()));
        for (int64_t i = 0; i < width; ++i)
          values[static_cast<size_t>(i)] = Value::ToFloat(row[static_cast<size_t>(i)]);
        if (bags.weights) {
          pooled.AddWeighted(values.data(), bags.weights[at]);
        } else {
          pooled.Add(values.data(), 1);
        }
      }
      if (pieces > 1) whole.Add(piece);
    }
    whole.Write<kType>(out + (bag - first_bag) * codec.row_bytes);
  }
}

}  // namespace

void PoolRows(const RowCodec& codec, const CodePath& path, const SlotRows& rows, const int32_t* slot_of,
              const Bags& bags, PoolType type, uint8_t* out, int threads) {
  if (bags.num_bags == 0) return;
  const RowOps& ops = codec.Ops(path);
  const int64_t num_ids = bags.offsets[bags.num_bags] - bags.offsets[0];
  const int64_t bag_bytes = (num_ids / bags.num_bags + 1) * codec.row_bytes;
  ParallelFor(bags.num_bags, 1, bag_bytes, threads, [&](int64_t begin, int64_t end) {
    uint8_t* const out_rows = out + begin * codec.row_bytes;
    switch (type) {
      case PoolType::kFloat32:
        return PoolBags<PoolType::kFloat32>(codec, ops, rows, slot_of, bags, begin, end, out_rows);
      case PoolType::kFloat16:
        return PoolBags<PoolType::kFloat16>(codec, ops, rows, slot_of, bags, begin, end, out_rows);
      case PoolType::kBfloat16:
        return PoolBags<PoolType::kBfloat16>(codec, ops, rows, slot_of, bags, begin, end, out_rows);
    }
  });
}

}  // namespace ibp
