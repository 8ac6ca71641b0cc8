// Fuzz target: a codec as bytes, as the C API takes it from anyone, with the right checksum behind them. It is refused,
// or it is one that saves to the same bytes.
#include "capi/codec_bytes.h"
#include "core/check.h"
#include "fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length) {
  using namespace ibp;
  Bytes with_checksum(bytes, bytes + length);
  uint64_t checksum = 14695981039346656037ull;
  for (const uint8_t byte : with_checksum) checksum = (checksum ^ byte) * 1099511628211ull;
  for (int i = 0; i < 8; ++i) with_checksum.push_back(static_cast<uint8_t>(checksum >> 8 * i));
  with_checksum.shrink_to_fit();
  try {
    const CodecDescription found = LoadCodec(with_checksum.data(), with_checksum.size());
    FUZZ_CHECK(SaveCodec(found) == with_checksum);
    const auto codec = found.Make();
    FUZZ_CHECK(codec->row_bytes > 0);
  } catch (const FormatError&) {
  } catch (const ArgumentError&) {
  }
  return 0;
}
