// Fitted codecs as the CPU code uses them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dict_layout.h"
#include "core/ibp_layout.h"

namespace ibp {

constexpr int kMaxColumnCodeBits = 3;  // of the dictionaries per column that SIMD code looks up by byte

enum class CodecKind { kIbp = 0, kDict = 1 };

// What code that handles rows of any codec needs to know.
struct RowCodec {
  CodecKind kind;
  int32_t row_bytes = 0;
  int64_t scratch_words = 0;  // uint64 words that measure and encode want

  virtual ~RowCodec() = default;
  // The tables that a GPU reads: how many bytes they are, and writes them. encoder: with those for encoding.
  virtual int64_t DeviceTableBytes(bool encoder) const = 0;
  virtual void WriteDeviceTables(bool encoder, uint8_t* out) const = 0;

 protected:
  explicit RowCodec(CodecKind kind_) : kind(kind_) {}
};

// The row as 64-bit groups. mask, bitval and valid have one word per group; `valid` marks the bits that belong to the
// row (all of them except in the last group). mask and bitval are 0 outside `valid`.
struct IbpCodec : RowCodec {
  IbpLayout layout;
  int32_t num_groups = 0;
  std::vector<uint64_t> mask, bitval, valid;
  std::vector<uint64_t>
      keeps;            // bit g: chunks of group g that participate leave bits in the payload; 16 bytes to spare
  bool sparse = false;  // few groups do, and no chunk is longer than a group

  // mask, bitval: row_bytes bytes each. Throws ArgumentError.
  IbpCodec(const uint8_t* mask, const uint8_t* bitval, int64_t row_bytes, int64_t chunk_bits);

  int64_t DeviceTableBytes(bool encoder) const override;
  void WriteDeviceTables(bool encoder, uint8_t* out) const override;
};

struct DictCodec : RowCodec {
  DictLayout layout;
  std::vector<uint16_t> dictionary;  // symbol of (column, code): layout.dictionary_entries(), and one to spare
  std::vector<uint8_t>
      code_of_symbol;  // 2^symbol_bits per column, or for the row; escape() where there is none; 3 to spare
  uint16_t escape_dictionary[kPlainSymbol + 1] = {};  // symbol of an escape code; 0 for kPlainSymbol
  std::vector<uint8_t> escape_code_of_symbol;         // [2^symbol_bits]; kPlainSymbol where there is none

  // For SIMD code: the dictionary of the row and the escape dictionary, a byte a symbol; and, for eight values of 32
  // bits, where the low bits of value j are in the 16 bytes from its half's first byte on (which bytes, and how far to
  // shift).
  uint8_t shared_symbols[16] = {};
  uint8_t escape_symbols[16] = {};
  std::vector<uint8_t> column_symbols;  // [columns << kMaxColumnCodeBits], and 128 to spare; empty if it does not fit
  int8_t low_shuffle[32] = {};
  uint32_t low_shift[8] = {};

  // dictionary: layout.dictionary_entries() symbols, distinct within a column; those from num_symbols() on are ignored.
  // escape_dictionary: kPlainSymbol symbols.
  DictCodec(const DictLayout& layout, const uint16_t* dictionary, int64_t entries, const uint16_t* escape_dictionary,
            int64_t escape_entries);

  int64_t DeviceTableBytes(bool encoder) const override;
  void WriteDeviceTables(bool encoder, uint8_t* out) const override;
};

}  // namespace ibp
