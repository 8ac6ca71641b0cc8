// The part of ibp.h that needs no GPU.
#include "include/ibp.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <numeric>

#include "capi/codec_bytes.h"
#include "capi/handles.h"
#include "capi/status.h"
#include "core/slot_buffers.h"
#include "cpu/slot_choice.h"

namespace ibp {
namespace {

thread_local char error_message[512];

ValueType TypeOf(ibp_dtype dtype) {
  switch (dtype) {
    case IBP_BOOL:
      return {8, 0, true};
    case IBP_UINT8:
    case IBP_INT8:
      return {8, 0, false};
    case IBP_INT16:
      return {16, 0, false};
    case IBP_INT32:
      return {32, 0, false};
    case IBP_INT64:
      return {64, 0, false};
    case IBP_FLOAT8_E4M3:
      return {8, 4, false};
    case IBP_FLOAT8_E5M2:
      return {8, 5, false};
    case IBP_FLOAT16:
      return {16, 5, false};
    case IBP_BFLOAT16:
      return {16, 8, false};
    case IBP_FLOAT32:
      return {32, 8, false};
    case IBP_FLOAT64:
      return {64, 11, false};
  }
  Throw<ArgumentError>("dtype: want one of ibp_dtype, got ", static_cast<int>(dtype));
}

void CheckNumRows(const RowCodec& codec, int64_t num_rows) {
  const int64_t most = (int64_t{1} << 62) / codec.row_bytes;
  if (num_rows < 0 || num_rows > most) Throw<ArgumentError>("num_rows: want 0 to ", most, ", got ", num_rows);
}

void CheckArray(const char* what, const void* array, int64_t length) {
  if (length > 0) CheckNotNull(what, array);
}

ibp_sizes SizesOf(const RowCodec& codec, int64_t num_rows, int64_t slot_bytes, int64_t num_overflow) {
  ibp_sizes sizes = {};
  sizes.num_rows = num_rows;
  sizes.slot_bytes = slot_bytes;
  sizes.num_overflow = num_overflow;
  sizes.bitmask_bytes = BitmaskBytes(num_rows);
  sizes.overflow_bytes = num_overflow * codec.row_bytes + kSlackBytes;
  // Says if the slot length cannot be.
  CheckSlotBuffers(codec.row_bytes, num_rows, slot_bytes, INT64_MAX, sizes.bitmask_bytes, sizes.overflow_bytes);
  sizes.slots_bytes = num_rows * slot_bytes + kSlackBytes;
  sizes.workspace_bytes = num_rows * int64_t{sizeof(int64_t)};
  return sizes;
}

bool Overflows(const RowCodec& codec, int64_t slot_bytes, int32_t payload_bytes) {
  return slot_bytes < codec.row_bytes && payload_bytes > slot_bytes;
}

int64_t LeadBytes(const ibp_codec& codec, const int32_t* payload_bytes, int64_t num_rows, int64_t slot_bytes) {
  const int64_t longest = std::min<int64_t>(slot_bytes, codec.codec->row_bytes - 1);
  std::vector<int64_t> rows_of_length(static_cast<size_t>(slot_bytes) + 1);
  for (int64_t row = 0; row < num_rows; ++row) {
    if (payload_bytes[row] <= longest) ++rows_of_length[static_cast<size_t>(payload_bytes[row])];
  }
  // Kernels of codec "dict" fetch once, unless zeros are left out: lengths differ by a few escapes.
  const bool fetches_once = codec.description.kind == "dict" && !codec.description.zero_code;
  return BestLeadBytes(rows_of_length.data(), slot_bytes, fetches_once);
}

ibp_codec* NewCodec(CodecDescription description) {
  auto made = std::make_unique<ibp_codec>();
  made->description = std::move(description);
  made->codec = made->description.Make();
  return made.release();
}

}  // namespace

ibp_status Fail(ibp_status status, const char* message) noexcept {
  std::snprintf(error_message, sizeof error_message, "%s", message);
  return status;
}

ibp_status FailOfException() noexcept {
  try {
    throw;
  } catch (const ArgumentError& error) {
    return Fail(IBP_BAD_ARGUMENT, error.what());
  } catch (const FormatError& error) {
    return Fail(IBP_DAMAGED, error.what());
  } catch (const std::out_of_range& error) {
    return Fail(IBP_BAD_ID, error.what());
  } catch (const std::bad_alloc&) {
    return Fail(IBP_NO_MEMORY, "memory: want more than there is");
  } catch (const std::exception& error) {
    return Fail(IBP_OTHER_ERROR, error.what());
  } catch (...) {
    return Fail(IBP_OTHER_ERROR, "an exception of an unknown type");
  }
}

}  // namespace ibp

using namespace ibp;

int32_t ibp_version(void) { return IBP_VERSION; }

int32_t ibp_format_version(void) { return kFormatVersion; }

const char* ibp_error_message(void) { return error_message; }

ibp_status ibp_codec_fit(const char* kind, ibp_dtype dtype, int64_t row_values, const void* rows, int64_t num_rows,
                         int64_t total_rows, int threads, ibp_codec** codec) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("kind", kind);
    CheckNotNull("rows", rows);
    *codec = NewCodec(
        FitCodec(kind, TypeOf(dtype), row_values, static_cast<const uint8_t*>(rows), num_rows, total_rows, threads));
    return IBP_OK;
  });
}

size_t ibp_codec_saved_bytes(const ibp_codec* codec) { return SaveCodec(codec->description).size(); }

ibp_status ibp_codec_save(const ibp_codec* codec, void* bytes, size_t num_bytes) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("bytes", bytes);
    const std::vector<uint8_t> saved = SaveCodec(codec->description);
    CheckEqual("num_bytes", saved.size(), num_bytes);
    std::memcpy(bytes, saved.data(), saved.size());
    return IBP_OK;
  });
}

ibp_status ibp_codec_load(const void* bytes, size_t num_bytes, ibp_codec** codec) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("bytes", bytes);
    CodecDescription found = LoadCodec(static_cast<const uint8_t*>(bytes), num_bytes);
    try {
      *codec = NewCodec(std::move(found));
    } catch (const ArgumentError& error) {  // of bytes, not of a caller
      throw FormatError(error.what());
    }
    return IBP_OK;
  });
}

void ibp_codec_free(ibp_codec* codec) { delete codec; }

int64_t ibp_codec_row_bytes(const ibp_codec* codec) { return codec->codec->row_bytes; }

const char* ibp_codec_kind(const ibp_codec* codec) { return codec->description.kind.c_str(); }

ibp_status ibp_bound(const ibp_codec* codec, int64_t num_rows, int64_t slot_bytes, ibp_sizes* sizes) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("sizes", sizes);
    CheckNumRows(*codec->codec, num_rows);
    *sizes = SizesOf(*codec->codec, num_rows, slot_bytes, slot_bytes < codec->codec->row_bytes ? num_rows : 0);
    return IBP_OK;
  });
}

ibp_status ibp_measure(const ibp_codec* codec, const void* rows, int64_t num_rows, int32_t* payload_bytes,
                       int threads) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNumRows(*codec->codec, num_rows);
    CheckArray("rows", rows, num_rows);
    CheckArray("payload_bytes", payload_bytes, num_rows);
    MeasureRows(*codec->codec, SelectCodePath(), static_cast<const uint8_t*>(rows), num_rows, payload_bytes, threads);
    return IBP_OK;
  });
}

ibp_status ibp_size(const ibp_codec* codec, const int32_t* payload_bytes, int64_t num_rows, int64_t slot_bytes,
                    ibp_sizes* sizes) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("sizes", sizes);
    const RowCodec& of_rows = *codec->codec;
    CheckNumRows(of_rows, num_rows);
    CheckArray("payload_bytes", payload_bytes, num_rows);
    for (int64_t row = 0; row < num_rows; ++row) {
      if (payload_bytes[row] < 0) Throw<ArgumentError>("payload_bytes: want lengths, got ", payload_bytes[row]);
    }
    if (slot_bytes == 0) {
      std::vector<int64_t> rows_of_length(static_cast<size_t>(of_rows.row_bytes) + 1);
      for (int64_t row = 0; row < num_rows; ++row) {
        ++rows_of_length[static_cast<size_t>(std::min(payload_bytes[row], of_rows.row_bytes))];
      }
      slot_bytes = BestSlotBytes(rows_of_length.data(), of_rows.row_bytes);
    }
    int64_t num_overflow = 0;
    for (int64_t row = 0; row < num_rows; ++row) num_overflow += Overflows(of_rows, slot_bytes, payload_bytes[row]);
    *sizes = SizesOf(of_rows, num_rows, slot_bytes, num_overflow);
    sizes->lead_bytes = LeadBytes(*codec, payload_bytes, num_rows, slot_bytes);
    return IBP_OK;
  });
}

ibp_status ibp_compress(const ibp_codec* codec, const void* rows, const int32_t* payload_bytes, const ibp_sizes* sizes,
                        void* slots, void* bitmask, void* overflow, void* workspace, int threads) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("sizes", sizes);
    const RowCodec& of_rows = *codec->codec;
    CheckNumRows(of_rows, sizes->num_rows);
    for (const auto& [name, array] : {std::pair<const char*, const void*>{"rows", rows},
                                      {"payload_bytes", payload_bytes},
                                      {"bitmask", bitmask},
                                      {"workspace", workspace}}) {
      CheckArray(name, array, sizes->num_rows);
    }
    CheckNotNull("slots", slots);
    CheckNotNull("overflow", overflow);
    if (reinterpret_cast<uintptr_t>(workspace) % alignof(int64_t) != 0) {
      Throw<ArgumentError>("workspace: want it at a multiple of ", alignof(int64_t), " bytes");
    }
    ibp_sizes wanted = SizesOf(of_rows, sizes->num_rows, sizes->slot_bytes, sizes->num_overflow);
    wanted.lead_bytes = sizes->lead_bytes;
    if (std::memcmp(&wanted, sizes, sizeof wanted) != 0) {
      Throw<ArgumentError>("sizes: want those that ibp_size gave, got others");
    }
    int64_t* overflow_index = static_cast<int64_t*>(workspace);
    int64_t num_overflow = 0;
    for (int64_t row = 0; row < sizes->num_rows; ++row) {
      overflow_index[row] = Overflows(of_rows, sizes->slot_bytes, payload_bytes[row]) ? num_overflow++ : -1;
    }
    CheckEqual("overflow rows", sizes->num_overflow, num_overflow);
    uint8_t* to = static_cast<uint8_t*>(slots);
    uint8_t* raw = static_cast<uint8_t*>(overflow);
    const MutableSlots out{
        to, static_cast<uint8_t*>(bitmask), raw, static_cast<int32_t>(sizes->slot_bytes), 0, num_overflow, {}, 0, 0};
    EncodeRows(of_rows, SelectCodePath(), static_cast<const uint8_t*>(rows), sizes->num_rows, overflow_index, 0, out,
               threads);
    std::memset(to + sizes->slots_bytes - kSlackBytes, 0, kSlackBytes);
    std::memset(raw + sizes->overflow_bytes - kSlackBytes, 0, kSlackBytes);
    return IBP_OK;
  });
}

ibp_status ibp_rows_make(const ibp_codec* codec, const ibp_sizes* sizes, const void* slots, const void* bitmask,
                         const void* overflow, ibp_rows** rows) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("sizes", sizes);
    CheckNotNull("slots", slots);
    CheckNotNull("overflow", overflow);
    CheckNotNull("rows", rows);
    CheckArray("bitmask", bitmask, sizes->num_rows);
    const RowCodec& of_rows = *codec->codec;
    CheckSlotBuffers(of_rows.row_bytes, sizes->num_rows, sizes->slot_bytes, sizes->slots_bytes, sizes->bitmask_bytes,
                     sizes->overflow_bytes);
    auto made = std::make_unique<ibp_rows>();
    made->codec = &of_rows;
    made->rows = {static_cast<const uint8_t*>(slots),
                  static_cast<const uint8_t*>(bitmask),
                  static_cast<const uint8_t*>(overflow),
                  sizes->num_rows,
                  (sizes->overflow_bytes - kSlackBytes) / of_rows.row_bytes,
                  static_cast<int32_t>(sizes->slot_bytes),
                  of_rows.row_bytes,
                  {},
                  0};
    *rows = made.release();
    return IBP_OK;
  });
}

void ibp_rows_free(ibp_rows* rows) { delete rows; }

ibp_status ibp_gather(const ibp_rows* rows, const int64_t* ids, int64_t num_ids, void* out, int threads) {
  return Guarded([&] {
    CheckNotNull("rows", rows);
    CheckAtLeast("num_ids", 0, num_ids);
    CheckArray("ids", ids, num_ids);
    CheckArray("out", out, num_ids);
    const int64_t bad = FirstBadId(ids, num_ids, rows->rows.num_rows);
    if (bad >= 0) {
      Throw<std::out_of_range>("ids: want 0 <= id < ", rows->rows.num_rows, ", got ", ids[bad], " at position ", bad);
    }
    DecodeRows(*rows->codec, SelectCodePath(), rows->rows, nullptr, ids, num_ids, static_cast<uint8_t*>(out), threads);
    return IBP_OK;
  });
}

ibp_status ibp_decompress(const ibp_rows* rows, void* out, int threads) {
  return Guarded([&] {
    CheckNotNull("rows", rows);
    CheckArray("out", out, rows->rows.num_rows);
    constexpr int64_t kStep = 4096;  // numbers at once
    int64_t ids[kStep];
    for (int64_t first = 0; first < rows->rows.num_rows; first += kStep) {
      const int64_t count = std::min(kStep, rows->rows.num_rows - first);
      std::iota(ids, ids + count, first);
      DecodeRows(*rows->codec, SelectCodePath(), rows->rows, nullptr, ids, count,
                 static_cast<uint8_t*>(out) + first * rows->codec->row_bytes, threads);
    }
    return IBP_OK;
  });
}

int64_t ibp_codec_table_bytes(const ibp_codec* codec) { return codec->codec->DeviceTableBytes(false); }

ibp_status ibp_codec_write_tables(const ibp_codec* codec, void* tables, int64_t table_bytes) {
  return Guarded([&] {
    CheckNotNull("codec", codec);
    CheckNotNull("tables", tables);
    CheckEqual("table_bytes", codec->codec->DeviceTableBytes(false), table_bytes);
    codec->codec->WriteDeviceTables(false, static_cast<uint8_t*>(tables));
    return IBP_OK;
  });
}
