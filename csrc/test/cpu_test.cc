// The CPU core without Python, to be run with AddressSanitizer and UndefinedBehaviorSanitizer (scripts/sanitize.sh):
// random codecs and rows through every code path that this CPU has, damaged slots, rows that another thread changes,
// wrong overflow indices, nothing at all. All buffers are exactly as long as their contract says.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <system_error>

#include "core/ibp_tables.h"
#include "cpu/narrow.h"
#include "cpu/packing.h"
#include "cpu/parallel.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "test/random_codecs.h"

namespace ibp {
namespace {

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)

// The message of the Error that `call` throws; empty if it throws none.
template <typename Error>
std::string Thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.what()[0] != '\0');
    return error.what();
  }
  return "";
}

std::vector<const CodePath*> Paths() {
  std::vector<const CodePath*> paths;
  for (const char* name : {"scalar", "avx2", "avx512"}) {
    Thrown<ArgumentError>([&] { paths.push_back(&CodePathByName(name)); });
  }
  return paths;
}

// Rows in slots, in buffers of their own.
struct Stored {
  int64_t num_rows;
  int32_t slot_bytes;
  Bytes slots, bitmask, overflow;

  Stored(int64_t num_rows_, int32_t row_bytes, int32_t slot_bytes_, int64_t num_overflow)
      : num_rows(num_rows_),
        slot_bytes(slot_bytes_),
        slots(static_cast<size_t>(num_rows * slot_bytes + kSlackBytes)),
        bitmask(static_cast<size_t>(BitmaskBytes(num_rows))),
        overflow(static_cast<size_t>(num_overflow * row_bytes + kSlackBytes)) {}

  MutableSlots out(int32_t row_bytes, int64_t first_overflow = 0) {
    MutableSlots made;
    made.slots = slots.data();
    made.bitmask = bitmask.data();
    made.overflow = overflow.data();
    made.slot_bytes = slot_bytes;
    made.first_overflow = first_overflow;
    made.num_overflow = NumOverflow(row_bytes);
    return made;
  }
  SlotRows in(int32_t row_bytes) const {
    SlotRows made;
    made.slots = slots.data();
    made.bitmask = bitmask.data();
    made.overflow = overflow.data();
    made.num_rows = num_rows;
    made.num_overflow = NumOverflow(row_bytes);
    made.slot_bytes = slot_bytes;
    made.row_bytes = row_bytes;
    return made;
  }
  int64_t NumOverflow(int32_t row_bytes) const {
    return (static_cast<int64_t>(overflow.size()) - kSlackBytes) / row_bytes;
  }
  bool operator==(const Stored& other) const {
    return slots == other.slots && bitmask == other.bitmask && overflow == other.overflow;
  }
};

std::vector<int64_t> OverflowIndex(const std::vector<int32_t>& lengths, int32_t row_bytes, int32_t slot_bytes) {
  std::vector<int64_t> index(lengths.size(), -1);
  int64_t next = 0;
  for (size_t row = 0; row < index.size(); ++row) {
    if (slot_bytes < row_bytes && lengths[row] > slot_bytes) index[row] = next++;
  }
  return index;
}

int64_t NumSpills(const std::vector<int64_t>& index) {
  return std::count_if(index.begin(), index.end(), [](int64_t place) { return place >= 0; });
}

Bytes Decode(const RowCodec& codec, const CodePath& path, const Stored& stored, const std::vector<int64_t>& ids,
             int threads = 1) {
  Bytes out(ids.size() * static_cast<size_t>(codec.row_bytes));
  DecodeRows(codec, path, stored.in(codec.row_bytes), nullptr, ids.data(), static_cast<int64_t>(ids.size()), out.data(),
             threads);
  return out;
}

std::vector<int64_t> AllIds(int64_t num_rows) {
  std::vector<int64_t> ids(static_cast<size_t>(num_rows));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  return ids;
}

// All paths measure alike, encode to the same bytes, and decode to the rows. Returns what they encode to.
Stored CheckRoundTrip(Random& random, const RowCodec& codec, const Bytes& rows, int32_t slot_bytes, int threads) {
  const int32_t row_bytes = codec.row_bytes;
  const int64_t num_rows = static_cast<int64_t>(rows.size()) / row_bytes;
  std::vector<int32_t> lengths(static_cast<size_t>(num_rows)), others = lengths;
  MeasureRows(codec, kScalarPath, rows.data(), num_rows, lengths.data(), threads);
  const std::vector<int64_t> index = OverflowIndex(lengths, row_bytes, slot_bytes);
  Stored stored(num_rows, row_bytes, slot_bytes, NumSpills(index));
  EncodeRows(codec, kScalarPath, rows.data(), num_rows, index.data(), 0, stored.out(row_bytes), threads);
  for (const CodePath* path : Paths()) {
    MeasureRows(codec, *path, rows.data(), num_rows, others.data(), threads);
    CHECK(others == lengths);
    Stored other(num_rows, row_bytes, slot_bytes, NumSpills(index));
    random.Fill(other.slots);
    std::fill(other.slots.end() - kSlackBytes, other.slots.end(), uint8_t{0});
    EncodeRows(codec, *path, rows.data(), num_rows, index.data(), 0, other.out(row_bytes), threads);
    CHECK(other == stored);
    CHECK(Decode(codec, *path, stored, AllIds(num_rows), threads) == rows);
  }
  return stored;
}

// Damaged rows are refused, or decode to the same on all paths; a slot is decoded from a buffer of exactly its length
// and the slack, which has to be enough for every path's loads.
void CheckDamage(Random& random, const RowCodec& codec, Stored stored) {
  const int32_t limit_bytes = std::min(stored.slot_bytes, codec.row_bytes - 1);
  if (random.Chance(50)) {
    random.Fill(stored.slots);
    random.Fill(stored.overflow);
  }
  for (int i = 0; i < 8; ++i) {
    stored.slots[static_cast<size_t>(random.Between(0, static_cast<int64_t>(stored.slots.size()) - 1))] ^=
        static_cast<uint8_t>(random.Word());
  }
  random.Fill(stored.bitmask);
  for (int64_t row = 0; row < stored.num_rows; ++row) {
    const uint8_t* slot = stored.slots.data() + row * stored.slot_bytes;
    Bytes payload(slot, slot + limit_bytes + kSlackBytes), decoded(static_cast<size_t>(codec.row_bytes));
    Bytes expected = decoded;
    const bool fits = codec.Ops(kScalarPath).decode(codec, payload.data(), limit_bytes, expected.data());
    Bytes whole(static_cast<size_t>(codec.row_bytes));
    const std::string error = Thrown<FormatError>([&] { whole = Decode(codec, kScalarPath, stored, {row}); });
    for (const CodePath* path : Paths()) {
      CHECK(codec.Ops(*path).decode(codec, payload.data(), limit_bytes, decoded.data()) == fits);
      if (fits) CHECK(decoded == expected);
      Bytes other(static_cast<size_t>(codec.row_bytes));
      CHECK(Thrown<FormatError>([&] { other = Decode(codec, *path, stored, {row}); }) == error);
      CHECK(other == whole);
    }
  }
}

// A code path that changes the rows whenever one has been measured, as another thread could.
struct ChangingPath {
  static inline const RowOps* real;
  static inline Random* random;
  static inline Bytes* rows;
  static inline Bytes seen;  // the rows as they were measured

  static int32_t Measure(const RowCodec& codec, const uint8_t* row, uint64_t* scratch) {
    const int32_t bytes = real->measure(codec, row, scratch);
    seen.insert(seen.end(), row, row + codec.row_bytes);
    random->Fill(*rows);
    return bytes;
  }
};

void CheckChangingRows(Random& random, const RowCodec& codec, const Bytes& before, int32_t slot_bytes) {
  const int32_t row_bytes = codec.row_bytes;
  const int64_t num_rows = static_cast<int64_t>(before.size()) / row_bytes;
  std::vector<int32_t> lengths(static_cast<size_t>(num_rows));
  MeasureRows(codec, kScalarPath, before.data(), num_rows, lengths.data(), 1);
  const std::vector<int64_t> index = OverflowIndex(lengths, row_bytes, slot_bytes);
  for (const CodePath* path : Paths()) {
    Stored stored(num_rows, row_bytes, slot_bytes, NumSpills(index));
    Bytes rows = before;
    ChangingPath::real = &codec.Ops(*path);
    ChangingPath::random = &random;
    ChangingPath::rows = &rows;
    ChangingPath::seen.clear();
    const RowOps ops = {&ChangingPath::Measure, ChangingPath::real->encode, ChangingPath::real->decode};
    const CodePath changing = {ops, ops, path->stream_lines, "changing"};
    const std::string error = Thrown<ArgumentError>(
        [&] { EncodeRows(codec, changing, rows.data(), num_rows, index.data(), 1000, stored.out(row_bytes), 1); });
    // Up to the row that the message names, if there is one, rows are stored as they were read.
    const int64_t encoded = static_cast<int64_t>(ChangingPath::seen.size()) / row_bytes - (error.empty() ? 0 : 1);
    if (!error.empty()) {
      CHECK(slot_bytes < row_bytes);
      CHECK(error == Message("row ", 1000 + encoded,
                             ": its payload has another length than when it was measured: the rows changed meanwhile"));
    }
    ChangingPath::seen.resize(static_cast<size_t>(encoded * row_bytes));
    CHECK(Decode(codec, *path, stored, AllIds(encoded)) == ChangingPath::seen);
  }
}

void CheckWrongOverflowIndices(Random& random, const RowCodec& codec, const Bytes& rows, int32_t slot_bytes) {
  const int64_t num_rows = static_cast<int64_t>(rows.size()) / codec.row_bytes;
  std::vector<int64_t> index(static_cast<size_t>(num_rows));
  for (int round = 0; round < 4; ++round) {
    const int64_t num_overflow = random.Between(0, 3), first = random.Between(0, 5);
    for (int64_t& place : index) {
      place = random.Chance(50) ? static_cast<int64_t>(random.Word()) : random.Between(-2, first + num_overflow + 1);
    }
    Stored stored(num_rows, codec.row_bytes, slot_bytes, num_overflow);
    const std::string error = Thrown<ArgumentError>([&] {
      EncodeRows(codec, SelectCodePath(), rows.data(), num_rows, index.data(), 0, stored.out(codec.row_bytes, first),
                 1);
    });
    if (slot_bytes >= codec.row_bytes) CHECK(error.empty());
  }
}

// Bags of 0 to many rows: the same bytes on all paths and from any number of threads. A bag of one row is that row, but
// for what CanonicalNan and a sum's start from 0 say.
void CheckPools(Random& random, const RowCodec& codec, const Bytes& rows, const Stored& stored) {
  const int64_t num_rows = stored.num_rows;
  std::vector<int64_t> offsets = {0};
  for (int bag = 0; bag < 12; ++bag) offsets.push_back(offsets.back() + random.Between(0, bag == 7 ? 400 : 5));
  std::vector<int64_t> ids(static_cast<size_t>(offsets.back()));
  std::vector<float> weights(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = random.Between(0, num_rows - 1);
    weights[i] = static_cast<float>(random.Between(-8, 8)) / 4;
  }
  const auto pool = [&](const Bags& bags, const CodePath& path, PoolType type, int threads) {
    Bytes out(static_cast<size_t>(bags.num_bags * codec.row_bytes));
    PoolRows(codec, path, stored.in(codec.row_bytes), nullptr, bags, type, out.data(), threads);
    return out;
  };
  for (const PoolType type : {PoolType::kFloat32, PoolType::kFloat16, PoolType::kBfloat16}) {
    const int32_t value_bytes = PoolTypeBytes(type);
    if (codec.row_bytes % value_bytes != 0) continue;
    for (const PoolMode mode : {PoolMode::kSum, PoolMode::kMean, PoolMode::kMax}) {
      Bags bags{
          ids.data(), offsets.data(), 12, mode == PoolMode::kSum ? weights.data() : nullptr, ids.empty() ? -1 : ids[0],
          mode};
      const Bytes expected = pool(bags, kScalarPath, type, 1);
      for (const CodePath* path : Paths()) CHECK(pool(bags, *path, type, 3) == expected);
    }
    const std::vector<int64_t> each = AllIds(num_rows), starts = AllIds(num_rows + 1);
    const Bytes same = pool({each.data(), starts.data(), num_rows, nullptr, -1, PoolMode::kMax}, kScalarPath, type, 1);
    for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(value_bytes)) {
      uint32_t value = 0, pooled = 0;
      std::memcpy(&value, rows.data() + at, static_cast<size_t>(value_bytes));
      std::memcpy(&pooled, same.data() + at, static_cast<size_t>(value_bytes));
      CHECK(pooled == value || pooled == CanonicalNan(type));
    }
  }
}

// Packed rows come back on all paths, also when some are copied; with a damaged directory or damaged rows they are
// refused, or decode to the same on all paths. The buffer ends where its contract says.
void CheckPacked(Random& random, const RowCodec& codec, const Bytes& rows) {
  const int32_t row_bytes = codec.row_bytes;
  const int64_t num_rows = static_cast<int64_t>(rows.size()) / row_bytes;
  std::vector<int32_t> lengths(static_cast<size_t>(num_rows));
  MeasureRows(codec, kScalarPath, rows.data(), num_rows, lengths.data(), 1);
  std::vector<int64_t> rows_of_length(static_cast<size_t>(row_bytes) + 1);
  for (const int32_t length : lengths) ++rows_of_length[static_cast<size_t>(std::min(length, row_bytes))];
  const int32_t least_unit = 1 << random.Between(0, 4);
  const PackingChoice choice = BestPacking(rows_of_length.data(), row_bytes, least_unit);
  std::vector<PackedRecord> directory(static_cast<size_t>(DirectoryBytes(num_rows) / kSectorBytes));
  const int64_t end =
      LayOutRows(lengths.data(), num_rows, row_bytes, choice.slot_bytes, choice.packing, 0, directory.data());
  CHECK(end == choice.total_bytes);
  Bytes packed(static_cast<size_t>(end + choice.slot_bytes + kSlackBytes));
  MutableSlots out;
  out.slots = packed.data();
  out.bitmask = reinterpret_cast<uint8_t*>(directory.data());
  out.slot_bytes = choice.slot_bytes;
  out.packing = choice.packing;
  out.packed_bytes = end;
  SlotRows in;
  in.slots = packed.data();
  in.bitmask = out.bitmask;
  in.num_rows = num_rows;
  in.slot_bytes = choice.slot_bytes;
  in.row_bytes = row_bytes;
  in.packing = choice.packing;
  in.packed_bytes = end;
  const std::vector<int64_t> ids = AllIds(num_rows);
  const auto decode = [&](const SlotRows& from, const CodePath& path, const std::vector<int64_t>& of) {
    Bytes decoded(of.size() * static_cast<size_t>(row_bytes));
    DecodeRows(codec, path, from, nullptr, of.data(), static_cast<int64_t>(of.size()), decoded.data(), 1);
    return decoded;
  };
  Bytes expected;
  for (const CodePath* path : Paths()) {
    random.Fill(packed);
    std::fill(packed.end() - kSlackBytes - choice.slot_bytes, packed.end(), uint8_t{0});
    EncodeRows(codec, *path, rows.data(), num_rows, nullptr, 0, out, 1);
    if (expected.empty()) expected = packed;
    CHECK(packed == expected);
    CHECK(decode(in, *path, ids) == rows);
  }
  std::vector<int64_t> starts(ids.size());
  std::vector<int32_t> found(ids.size());
  FindPackedRows(in, ids.data(), num_rows, starts.data(), found.data());
  std::vector<PackedRecord> again(directory.size());
  Bytes copy(packed.size());
  MutableSlots to = out;
  to.slots = copy.data();
  to.bitmask = reinterpret_cast<uint8_t*>(again.data());
  CHECK(LayOutRows(found.data(), num_rows, row_bytes, choice.slot_bytes, choice.packing, 0, again.data()) == end);
  CopyPackedRows(in, ids.data(), num_rows, to, 2);
  CHECK(copy == packed && std::memcmp(again.data(), directory.data(), again.size() * sizeof(PackedRecord)) == 0);
  for (int round = 0; round < 8; ++round) {
    Bytes damaged(packed);
    for (int i = 0; i < 4; ++i) {
      damaged[static_cast<size_t>(random.Between(0, end - 1))] ^= static_cast<uint8_t>(random.Word());
    }
    std::vector<PackedRecord> wrong(directory);
    if (round % 2 == 0) {
      auto* bytes = reinterpret_cast<uint8_t*>(wrong.data());
      bytes[random.Between(0, DirectoryBytes(num_rows) - 1)] ^= static_cast<uint8_t>(random.Word());
    }
    SlotRows from = in;
    from.slots = damaged.data();
    from.bitmask = reinterpret_cast<const uint8_t*>(wrong.data());
    for (const int64_t id : ids) {
      Bytes whole;
      const std::string error = Thrown<FormatError>([&] { whole = decode(from, kScalarPath, {id}); });
      for (const CodePath* path : Paths()) {
        Bytes other;
        CHECK(Thrown<FormatError>([&] { other = decode(from, *path, {id}); }) == error);
        CHECK(other == whole);
      }
    }
  }
}

template <typename RandomCodec>
void CheckRandomCodecs(uint64_t seed, int rounds) {
  Random random(seed);
  for (int round = 0; round < rounds; ++round) {
    const RandomCodec made(random);
    const RowCodec& codec = made.codec;
    const Bytes rows = made.Rows(random, random.Between(1, 40));
    const int32_t least = std::min<int32_t>(kOverflowIndexBytes, codec.row_bytes);
    const int32_t slot_bytes = static_cast<int32_t>(random.Between(least, codec.row_bytes + codec.row_bytes / 4));
    const Stored stored = CheckRoundTrip(random, codec, rows, slot_bytes, 1);
    CheckRoundTrip(random, codec, rows, codec.row_bytes, 1);
    CheckPools(random, codec, rows, stored);
    CheckDamage(random, codec, stored);
    CheckPacked(random, codec, rows);
    CheckChangingRows(random, codec, rows, slot_bytes);
    CheckWrongOverflowIndices(random, codec, rows, slot_bytes);
  }
}

// Enough for several threads, and for an output that goes past the caches.
void CheckManyRows() {
  Random random(3);
  const RandomIbp made(random, 300);
  const int64_t num_rows = 16'000;
  const Bytes some = made.Rows(random, 100);
  Bytes rows;
  for (int64_t at = 0; at < num_rows; at += 100) rows.insert(rows.end(), some.begin(), some.end());
  rows.shrink_to_fit();
  CheckRoundTrip(random, made.codec, rows, 150, 3);
  std::vector<int64_t> ones(8 * 300), expected = ones;
  CountOnes(rows.data(), num_rows, 300, ones.data(), 3);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (size_t bit = 0; bit < 8 * 300; ++bit) {
      expected[bit] += rows[static_cast<size_t>(row) * 300 + bit / 8] >> (bit % 8) & 1;
    }
  }
  CHECK(ones == expected);
}

void CheckNothing() {
  Random random(4);
  const RandomIbp ibp(random);
  const RandomDict dict(random);
  for (const RowCodec* codec : {static_cast<const RowCodec*>(&ibp.codec), static_cast<const RowCodec*>(&dict.codec)}) {
    for (const CodePath* path : Paths()) {
      Stored stored(0, codec->row_bytes, codec->row_bytes, 0);
      MeasureRows(*codec, *path, nullptr, 0, nullptr, 2);
      EncodeRows(*codec, *path, nullptr, 0, nullptr, 0, stored.out(codec->row_bytes), 2);
      EncodeRows(*codec, *path, nullptr, 0, nullptr, 0, {}, 2);
      CHECK(Decode(*codec, *path, stored, {}, 2).empty());
      // As if another thread had written them after they were checked.
      for (const int64_t id : {int64_t{0}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
        bool refused = false;
        try {
          Decode(*codec, *path, stored, {id}, 2);
        } catch (const std::out_of_range&) {
          refused = true;
        }
        CHECK(refused);
      }
    }
  }
  std::vector<int64_t> ones(8, 1);
  CountOnes(nullptr, 0, 1, ones.data(), 2);
  CHECK(ones == std::vector<int64_t>(8, 0));
  CHECK(FirstBadId(nullptr, 0, 0) == -1);
  const int64_t ids[] = {0, 4, 5, -1};
  int32_t staged[4];
  CHECK(StageIds(ids, 2, 5, staged) && staged[1] == 4 && !StageIds(ids, 3, 5, staged) &&
        !StageIds(ids + 3, 1, 5, staged));
  CHECK(FirstBadId(ids, 2, 5) == -1 && FirstBadId(ids, 4, 5) == 2 && FirstBadId(ids + 3, 1, 5) == 0);
}

void CheckTables() {
  Random random(5);
  for (int round = 0; round < 50; ++round) {
    const RandomIbp made(random);
    const int32_t stride = TableStride(made.codec.row_bytes);
    std::vector<uint32_t> tables(static_cast<size_t>(kNumTables * stride));
    MakeIbpTables(made.codec.layout, made.mask.data(), made.bitval.data(), tables.data());
    for (int32_t unit = 0; unit < stride; ++unit) {
      uint32_t moves[kExpandSteps];
      for (int s = 0; s < kExpandSteps; ++s) moves[s] = tables[static_cast<size_t>((kMoveTable + s) * stride + unit)];
      const uint32_t keep = tables[static_cast<size_t>(unit)], x = static_cast<uint32_t>(random.Word());
      CHECK(SpreadFields(PackFields(x, keep, moves), keep, moves) == (x & keep));
    }
  }
}

// Starts `left` threads, then throws.
struct FailingStart {
  mutable int left;
  const std::function<void()> fail;

  template <typename Run>
  std::thread operator()(const Run& run) const {
    if (left-- == 0) fail();
    return std::thread(run);
  }
};

void CheckThreadsThatCannotStart() {
  const std::function<void()> failures[] = {
      [] { throw std::bad_alloc(); },
      [] { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)); },
  };
  constexpr int64_t kItems = 1000, kBytes = 1 << 20;
  for (const std::function<void()>& fail : failures) {
    for (int started = 0; started < 4; ++started) {
      std::vector<int> done(kItems);
      auto work = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++done[static_cast<size_t>(i)];
      };
      ParallelFor(kItems, 32, kBytes, 5, work, FailingStart{started, fail});
      CHECK(done == std::vector<int>(kItems, 1));
      auto failing = [&](int64_t begin, int64_t end) {
        work(begin, end);
        if (end == kItems) throw FormatError("the last part");
      };
      const std::string error =
          Thrown<FormatError>([&] { ParallelFor(kItems, 32, kBytes, 5, failing, FailingStart{started, fail}); });
      CHECK(error == "the last part");
      CHECK(done == std::vector<int>(kItems, 2));
    }
  }
}

// All codes to float32 and back; any bits to codes; buffers of exactly their length.
void CheckNarrowFloats() {
  for (const NarrowFloat format : {NarrowFloat::kFloat16, NarrowFloat::kE5m2, NarrowFloat::kE4m3}) {
    const auto bytes = static_cast<size_t>(NarrowBytes(format));
    const size_t count = size_t{1} << (8 * bytes);
    std::vector<uint8_t> codes(count * bytes), again(codes.size());
    for (size_t code = 0; code < count; ++code) std::memcpy(codes.data() + code * bytes, &code, bytes);
    std::vector<float> values(count);
    WidenValues(format, codes.data(), static_cast<int64_t>(count), values.data(), 3);
    NarrowValues(format, {}, values.data(), nullptr, static_cast<int64_t>(count), again.data(), 3);
    for (size_t i = 0; i < codes.size(); ++i) CHECK(codes[i] == again[i] || values[i / bytes] != values[i / bytes]);
    std::mt19937 bits(7);
    std::vector<uint32_t> random(5000);
    for (uint32_t& one : random) one = bits();
    for (size_t i = 0; i + 1 < random.size(); ++i) std::memcpy(&values[i % count], &random[i + 1], 4);
    const auto some = static_cast<int64_t>(std::min(count, random.size()));
    for (const bool saturate : {false, true}) {
      NarrowValues(format, {saturate, true}, values.data(), random.data(), some, again.data(), 2);
      NarrowValues(format, {saturate, false}, values.data(), nullptr, some, again.data(), 2);
    }
  }
}

}  // namespace
}  // namespace ibp

int main() {
  ibp::CheckNarrowFloats();
  ibp::CheckNothing();
  ibp::CheckTables();
  ibp::CheckThreadsThatCannotStart();
  ibp::CheckRandomCodecs<ibp::RandomIbp>(1, 300);
  ibp::CheckRandomCodecs<ibp::RandomDict>(2, 800);
  ibp::CheckManyRows();
  std::printf("CPU core: all checks passed\n");
}
