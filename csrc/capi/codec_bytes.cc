#include "capi/codec_bytes.h"

#include <cstring>

#include "core/check.h"
#include "core/dict_layout.h"
#include "core/format.h"

namespace ibp {
namespace {

constexpr char kMagic[] = "IBPCODEC";
constexpr uint32_t kVersion = 1;
constexpr size_t kNameBytes = 8;

uint64_t Checksum(const uint8_t* bytes, size_t num_bytes) {
  uint64_t hash = 14695981039346656037ull;
  for (size_t i = 0; i < num_bytes; ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

class Writer {
 public:
  void Put(const void* from, size_t num_bytes) {
    const uint8_t* bytes = static_cast<const uint8_t*>(from);
    bytes_.insert(bytes_.end(), bytes, bytes + num_bytes);
  }
  template <typename T>
  void Number(T value) {
    Put(&value, sizeof value);
  }
  template <typename T>
  void Array(const std::vector<T>& values) {
    Put(values.data(), values.size() * sizeof(T));
  }
  std::vector<uint8_t> Finish() {
    Number(Checksum(bytes_.data(), bytes_.size()));
    return std::move(bytes_);
  }

 private:
  std::vector<uint8_t> bytes_;
};

class Reader {
 public:
  Reader(const uint8_t* bytes, size_t num_bytes) : next_(bytes), left_(num_bytes) {}

  void Take(void* to, size_t num_bytes) {
    if (num_bytes > left_) Throw<FormatError>("codec: want ", num_bytes, " more bytes, got ", left_);
    if (num_bytes > 0) std::memcpy(to, next_, num_bytes);
    next_ += num_bytes;
    left_ -= num_bytes;
  }
  template <typename T>
  T Number() {
    T value;
    Take(&value, sizeof value);
    return value;
  }
  // Allocates no more than there is.
  template <typename T>
  std::vector<T> Array(int64_t length) {
    if (length < 0 || static_cast<uint64_t>(length) > left_ / sizeof(T)) {
      Throw<FormatError>("codec: want an array of ", length, " numbers, got ", left_, " bytes");
    }
    std::vector<T> values(static_cast<size_t>(length));
    Take(values.data(), values.size() * sizeof(T));
    return values;
  }
  size_t left() const { return left_; }

 private:
  const uint8_t* next_;
  size_t left_;
};

}  // namespace

std::vector<uint8_t> SaveCodec(const CodecDescription& description) {
  Writer writer;
  writer.Put(kMagic, kNameBytes);
  writer.Number(kVersion);
  writer.Number(static_cast<uint32_t>(kFormatVersion));
  char kind[kNameBytes] = {};
  std::memcpy(kind, description.kind.data(), description.kind.size());
  writer.Put(kind, kNameBytes);
  if (description.kind == "ibp") {
    writer.Number(static_cast<int64_t>(description.mask.size()));
    writer.Number(description.chunk_bits);
    writer.Array(description.mask);
    writer.Array(description.bitval);
  } else {
    writer.Number(description.num_values);
    for (const int32_t number :
         {description.value_bits, description.symbol_bits, description.trim_bits, description.code_bits}) {
      writer.Number(int64_t{number});
    }
    writer.Number(int64_t{description.sign_low} | int64_t{description.zero_code} << 1 |
                  int64_t{description.per_column} << 2);
    writer.Array(description.dictionary);
    writer.Array(description.escape_dictionary);
  }
  return writer.Finish();
}

CodecDescription LoadCodec(const uint8_t* bytes, size_t num_bytes) {
  Reader reader(bytes, num_bytes);
  char name[kNameBytes + 1] = {};
  reader.Take(name, kNameBytes);
  if (std::strcmp(name, kMagic) != 0) Throw<FormatError>("codec: want bytes that start with ", kMagic);
  const uint32_t version = reader.Number<uint32_t>(), row_format = reader.Number<uint32_t>();
  if (version != kVersion || row_format != static_cast<uint32_t>(kFormatVersion)) {
    Throw<FormatError>("codec: want version ", kVersion, " of format ", kFormatVersion, ", got ", version, " of ",
                       row_format);
  }
  reader.Take(name, kNameBytes);
  CodecDescription found;
  found.kind.assign(name, kNameBytes);
  while (!found.kind.empty() && found.kind.back() == '\0') found.kind.pop_back();
  if (found.kind == "ibp") {
    const int64_t row_bytes = reader.Number<int64_t>();
    found.chunk_bits = reader.Number<int64_t>();
    found.mask = reader.Array<uint8_t>(row_bytes);
    found.bitval = reader.Array<uint8_t>(row_bytes);
  } else if (found.kind == "dict") {
    found.num_values = reader.Number<int64_t>();
    for (int32_t* number : {&found.value_bits, &found.symbol_bits, &found.trim_bits, &found.code_bits}) {
      const int64_t value = reader.Number<int64_t>();
      if (value < 0 || value > 64) Throw<FormatError>("codec: want a number of bits up to 64, got ", value);
      *number = static_cast<int32_t>(value);
    }
    const int64_t flags = reader.Number<int64_t>();
    if (flags < 0 || flags > 7) Throw<FormatError>("codec: want flags from 0 to 7, got ", flags);
    found.sign_low = flags & 1;
    found.zero_code = flags & 2;
    found.per_column = flags & 4;
    if (found.code_bits > kMaxCodeBits || found.num_values < 1 || found.num_values > kMaxRowBytes) {
      Throw<FormatError>("codec: want code_bits of at most ", kMaxCodeBits, " and 1 to ", kMaxRowBytes, " values, got ",
                         found.code_bits, " and ", found.num_values);
    }
    found.dictionary = reader.Array<uint16_t>((found.per_column ? found.num_values : 1) << found.code_bits);
    found.escape_dictionary = reader.Array<uint16_t>(kPlainSymbol);
  } else {
    Throw<FormatError>("codec: want kind dict or ibp, got another one");
  }
  const uint64_t wanted = Checksum(bytes, num_bytes - reader.left());
  if (reader.left() != sizeof(uint64_t) || reader.Number<uint64_t>() != wanted) {
    Throw<FormatError>("codec: want bytes with their checksum behind them, got others");
  }
  return found;
}

}  // namespace ibp
