// What code that handles rows of any codec needs to know of a fitted one.
#pragma once

#include <cstdint>
#include <memory>

namespace ibp {

class CodecParameters;
struct CodePath;
struct RowOps;

// Immutable.
struct RowCodec {
  int32_t row_bytes = 0;
  int64_t scratch_words = 0;  // uint64 words that measure and encode want

  virtual ~RowCodec() = default;
  // Its operations on one row, in the version of this code path.
  virtual const RowOps& Ops(const CodePath& path) const = 0;
  // The tables that a GPU reads: how many bytes they are, and writes them. encoder: with those for encoding.
  virtual int64_t DeviceTableBytes(bool encoder) const = 0;
  virtual void WriteDeviceTables(bool encoder, uint8_t* out) const = 0;
};

// name: of core/codec_list.h. Throws ArgumentError.
std::unique_ptr<RowCodec> MakeCodec(const char* name, const CodecParameters& parameters);

}  // namespace ibp
