// ibp_gnn._cpu: checks shapes, releases the GIL, calls. Value checks that need a person's message are in Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <optional>
#include <tuple>
#include <vector>

#include "bind/codec_parameters.h"
#include "bind/ndarrays.h"
#include "core/slot_buffers.h"
#include "cpu/huge_pages.h"
#include "cpu/narrow.h"
#include "cpu/packing.h"
#include "cpu/pool.h"
#include "cpu/rows.h"
#include "cpu/slot_choice.h"

namespace ibp {
namespace {

template <typename T>
using CpuVector = Vector<T, nb::device::cpu>;
template <typename T>
using CpuMatrix = Matrix<T, nb::device::cpu>;
using NoGil = nb::gil_scoped_release;

void BindDeviceTables(const RowCodec& codec, bool encoder, const CpuVector<uint8_t>& tables) {
  CheckEqual("tables bytes", codec.DeviceTableBytes(encoder), Length(tables));
  codec.WriteDeviceTables(encoder, tables.data());
}

int64_t BindBestSlotBytes(const CpuVector<const int64_t>& rows_of_length, int64_t row_bytes) {
  if (row_bytes < 1 || row_bytes > kMaxRowBytes) {
    Throw<ArgumentError>("row_bytes: want 1 to ", kMaxRowBytes, ", got ", row_bytes);
  }
  CheckEqual("rows_of_length", row_bytes + 1, Length(rows_of_length));
  return BestSlotBytes(rows_of_length.data(), row_bytes);
}

int64_t BindBestLeadBytes(const CpuVector<const int64_t>& rows_of_length, int64_t slot_bytes, bool fetches_once) {
  CheckAtLeast("slot_bytes", 1, slot_bytes);
  CheckEqual("rows_of_length", slot_bytes + 1, Length(rows_of_length));
  return BestLeadBytes(rows_of_length.data(), slot_bytes, fetches_once);
}

void BindCountOnes(const CpuMatrix<const uint8_t>& rows, const CpuVector<int64_t>& ones, int threads) {
  CheckEqual("ones", 8 * static_cast<int64_t>(rows.shape(1)), Length(ones));
  const NoGil no_gil;
  CountOnes(rows.data(), Length(rows), static_cast<int64_t>(rows.shape(1)), ones.data(), threads);
}

void CheckRows(const RowCodec& codec, const CpuMatrix<const uint8_t>& rows) {
  CheckEqual("row_bytes", int64_t{codec.row_bytes}, static_cast<int64_t>(rows.shape(1)));
}

void BindMeasure(const RowCodec& codec, const CpuMatrix<const uint8_t>& rows, const CpuVector<int32_t>& payload_bytes,
                 int threads, const std::string& path) {
  CheckRows(codec, rows);
  CheckEqual("payload_bytes", Length(rows), Length(payload_bytes));
  const CodePath& code_path = path.empty() ? SelectCodePath() : CodePathByName(path.c_str());
  const NoGil no_gil;
  MeasureRows(codec, code_path, rows.data(), Length(rows), payload_bytes.data(), threads);
}

MutableSlots CheckedTarget(int32_t row_bytes, int64_t num_rows, const CpuVector<uint8_t>& rows, int64_t slot_bytes,
                           const CpuVector<uint8_t>& directory, const Packing& packing, int64_t first_start) {
  MutableSlots out;
  out.slots = rows.data();
  out.bitmask = directory.data();
  out.packing = packing;
  out.packed_bytes =
      CheckPackedBuffers(row_bytes, num_rows, slot_bytes, packing, Length(rows), directory.data(), Length(directory));
  out.slot_bytes = static_cast<int32_t>(slot_bytes);
  out.first_start = first_start;
  return out;
}

void BindEncode(const RowCodec& codec, const CpuMatrix<const uint8_t>& rows,
                const CpuVector<const int64_t>& overflow_index, const CpuVector<uint8_t>& slots, int64_t slot_bytes,
                const CpuVector<uint8_t>& bitmask, const CpuVector<uint8_t>& overflow, int threads,
                const std::string& path, int64_t first_overflow, int64_t first_row, int32_t unit_bytes,
                int32_t least_bytes, int64_t first_start) {
  CheckRows(codec, rows);
  const int64_t n = Length(rows);
  if (unit_bytes != 0) {
    const CodePath& code_path = path.empty() ? SelectCodePath() : CodePathByName(path.c_str());
    const MutableSlots out =
        CheckedTarget(codec.row_bytes, n, slots, slot_bytes, bitmask, {unit_bytes, least_bytes}, first_start);
    const NoGil no_gil;
    return EncodeRows(codec, code_path, rows.data(), n, nullptr, first_row, out, threads);
  }
  CheckAtLeast("first_overflow", 0, first_overflow);
  CheckAtLeast("first_row", 0, first_row);
  CheckEqual("overflow_index", n, Length(overflow_index));
  CheckSlotBuffers(codec.row_bytes, n, slot_bytes, Length(slots), Length(bitmask), Length(overflow));
  const int64_t num_overflow = (Length(overflow) - kSlackBytes) / codec.row_bytes;
  if (first_overflow > (int64_t{1} << 32) - num_overflow) {
    Throw<ArgumentError>("overflow rows: want at most ", int64_t{1} << 32, ", got ", num_overflow, " from ",
                         first_overflow, " on");
  }
  const int64_t overflow_end = first_overflow + num_overflow;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t index = overflow_index.data()[i];
    if (index >= overflow_end) Throw<ArgumentError>("overflow_index: want below ", overflow_end, ", got ", index);
    if (index >= 0 && index < first_overflow && slot_bytes < codec.row_bytes) {
      Throw<ArgumentError>("overflow_index: want at least ", first_overflow, ", got ", index);
    }
  }
  const CodePath& code_path = path.empty() ? SelectCodePath() : CodePathByName(path.c_str());
  const NoGil no_gil;
  MutableSlots out;
  out.slots = slots.data();
  out.bitmask = bitmask.data();
  out.overflow = overflow.data();
  out.slot_bytes = static_cast<int32_t>(slot_bytes);
  out.first_overflow = first_overflow;
  out.num_overflow = num_overflow;
  EncodeRows(codec, code_path, rows.data(), n, overflow_index.data(), first_row, out, threads);
}

SlotRows PackedRows(int32_t row_bytes, int64_t num_rows, const CpuVector<const uint8_t>& rows, int64_t slot_bytes,
                    const CpuVector<const uint8_t>& directory, const Packing& packing) {
  SlotRows packed;
  packed.slots = rows.data();
  packed.bitmask = directory.data();
  packed.num_rows = num_rows;
  packed.packing = packing;
  packed.packed_bytes =
      CheckPackedBuffers(row_bytes, num_rows, slot_bytes, packing, Length(rows), directory.data(), Length(directory));
  packed.slot_bytes = static_cast<int32_t>(slot_bytes);
  packed.row_bytes = row_bytes;
  return packed;
}

SlotRows CheckedRows(const RowCodec& codec, const CpuVector<const uint8_t>& slots, int64_t slot_bytes,
                     const CpuVector<const uint8_t>& bitmask, const CpuVector<const uint8_t>& overflow,
                     int64_t num_rows, const std::optional<CpuVector<const int32_t>>& slot_of, const Packing& packing) {
  if (slot_of) CheckEqual("slot_of", num_rows, Length(*slot_of));
  if (packing.is_packed()) return PackedRows(codec.row_bytes, num_rows, slots, slot_bytes, bitmask, packing);
  CheckSlotBuffers(codec.row_bytes, num_rows, slot_bytes, Length(slots), Length(bitmask), Length(overflow));
  SlotRows rows;
  rows.slots = slots.data();
  rows.bitmask = bitmask.data();
  rows.overflow = overflow.data();
  rows.num_rows = num_rows;
  rows.num_overflow = (Length(overflow) - kSlackBytes) / codec.row_bytes;
  rows.slot_bytes = static_cast<int32_t>(slot_bytes);
  rows.row_bytes = codec.row_bytes;
  return rows;
}

// Returns (slot_bytes, unit_bytes, least_bytes, total_bytes).
std::tuple<int32_t, int32_t, int32_t, int64_t> BindBestPacking(const CpuVector<const int64_t>& rows_of_length,
                                                               int64_t row_bytes, int32_t least_unit) {
  if (row_bytes < 1 || row_bytes > kMaxRowBytes) {
    Throw<ArgumentError>("row_bytes: want 1 to ", kMaxRowBytes, ", got ", row_bytes);
  }
  CheckEqual("rows_of_length", row_bytes + 1, Length(rows_of_length));
  CheckAtLeast("least_unit", 1, least_unit);
  const PackingChoice best = BestPacking(rows_of_length.data(), static_cast<int32_t>(row_bytes), least_unit);
  return {best.slot_bytes, best.packing.unit_bytes, best.packing.least_bytes, best.total_bytes};
}

int64_t BindLayOut(const CpuVector<const int32_t>& payload_bytes, int32_t row_bytes, int64_t slot_bytes,
                   int32_t unit_bytes, int32_t least_bytes, int64_t first_start, const CpuVector<uint8_t>& directory) {
  const int64_t n = Length(payload_bytes);
  const Packing packing{unit_bytes, least_bytes};
  CheckPackedBuffers(row_bytes, n, slot_bytes, packing, slot_bytes + kSlackBytes, directory.data(), Length(directory));
  CheckAtLeast("first_start", 0, first_start);
  const NoGil no_gil;
  return LayOutRows(payload_bytes.data(), n, row_bytes, static_cast<int32_t>(slot_bytes), packing, first_start,
                    reinterpret_cast<PackedRecord*>(directory.data()));
}

void CheckIds(const CpuVector<const int64_t>& ids, int64_t num_rows) {
  const int64_t bad = FirstBadId(ids.data(), Length(ids), num_rows);
  if (bad >= 0) {
    Throw<std::out_of_range>("ids: want 0 <= id < ", num_rows, ", got ", ids.data()[bad], " at position ", bad);
  }
}

void BindFindPacked(const CpuVector<const uint8_t>& rows, int32_t row_bytes, int64_t slot_bytes, int32_t unit_bytes,
                    int32_t least_bytes, const CpuVector<const uint8_t>& directory, int64_t num_rows,
                    const CpuVector<const int64_t>& slots, const CpuVector<int64_t>& starts,
                    const CpuVector<int32_t>& payload_bytes) {
  const SlotRows packed = PackedRows(row_bytes, num_rows, rows, slot_bytes, directory, {unit_bytes, least_bytes});
  CheckEqual("starts", Length(slots), Length(starts));
  CheckEqual("payload_bytes", Length(slots), Length(payload_bytes));
  const NoGil no_gil;
  CheckIds(slots, num_rows);
  FindPackedRows(packed, slots.data(), Length(slots), starts.data(), payload_bytes.data());
}

void BindCopyPacked(const CpuVector<const uint8_t>& rows, int32_t row_bytes, int64_t slot_bytes, int32_t unit_bytes,
                    int32_t least_bytes, const CpuVector<const uint8_t>& directory, int64_t num_rows,
                    const CpuVector<const int64_t>& slots, const CpuVector<uint8_t>& out_rows,
                    const CpuVector<uint8_t>& out_directory, int64_t first_start, int threads) {
  const Packing packing{unit_bytes, least_bytes};
  const SlotRows packed = PackedRows(row_bytes, num_rows, rows, slot_bytes, directory, packing);
  const MutableSlots out =
      CheckedTarget(row_bytes, Length(slots), out_rows, slot_bytes, out_directory, packing, first_start);
  const NoGil no_gil;
  CheckIds(slots, num_rows);
  CopyPackedRows(packed, slots.data(), Length(slots), out, threads);
}

template <typename Id>
bool BindStageIds(const CpuVector<const Id>& ids, int64_t num_rows, const CpuVector<int32_t>& out) {
  if (num_rows < 1 || num_rows > int64_t{1} << 31) {
    Throw<ArgumentError>("num_rows: want 1 to ", int64_t{1} << 31, ", got ", num_rows);
  }
  CheckEqual("out", Length(ids), Length(out));
  const NoGil no_gil;
  return StageIds(ids.data(), Length(ids), num_rows, out.data());
}

void BindDecode(const RowCodec& codec, const CpuVector<const uint8_t>& slots, int64_t slot_bytes,
                const CpuVector<const uint8_t>& bitmask, const CpuVector<const uint8_t>& overflow, int64_t num_rows,
                const CpuVector<const int64_t>& ids, const CpuMatrix<uint8_t>& out, int threads,
                const std::string& path, const std::optional<CpuVector<const int32_t>>& slot_of, int32_t unit_bytes,
                int32_t least_bytes) {
  CheckEqual("out rows", Length(ids), Length(out));
  CheckEqual("out row_bytes", int64_t{codec.row_bytes}, static_cast<int64_t>(out.shape(1)));
  const SlotRows rows =
      CheckedRows(codec, slots, slot_bytes, bitmask, overflow, num_rows, slot_of, {unit_bytes, least_bytes});
  const CodePath& code_path = path.empty() ? SelectCodePath() : CodePathByName(path.c_str());
  const NoGil no_gil;
  CheckIds(ids, num_rows);
  DecodeRows(codec, code_path, rows, slot_of ? slot_of->data() : nullptr, ids.data(), Length(ids), out.data(), threads);
}

void BindPool(const RowCodec& codec, const CpuVector<const uint8_t>& slots, int64_t slot_bytes,
              const CpuVector<const uint8_t>& bitmask, const CpuVector<const uint8_t>& overflow, int64_t num_rows,
              const CpuVector<const int64_t>& ids, const CpuVector<const int64_t>& offsets,
              const std::optional<CpuVector<const float>>& weights, int64_t padding_id, int mode, int type,
              const CpuMatrix<uint8_t>& out, int threads, const std::string& path,
              const std::optional<CpuVector<const int32_t>>& slot_of, int32_t unit_bytes, int32_t least_bytes) {
  CheckEqual("out row_bytes", int64_t{codec.row_bytes}, static_cast<int64_t>(out.shape(1)));
  CheckAtLeast("offsets", 1, Length(offsets));
  CheckEqual("out rows", Length(offsets) - 1, Length(out));
  if (weights) CheckEqual("weights", Length(ids), Length(*weights));
  if (mode < 0 || mode > static_cast<int>(PoolMode::kMax)) Throw<ArgumentError>("mode: want 0 to 2, got ", mode);
  if (type < 0 || type > static_cast<int>(PoolType::kBfloat16)) Throw<ArgumentError>("type: want 0 to 2, got ", type);
  const PoolType of_values = static_cast<PoolType>(type);
  CheckEqual("row_bytes of whole values", 0, codec.row_bytes % PoolTypeBytes(of_values));
  const SlotRows rows =
      CheckedRows(codec, slots, slot_bytes, bitmask, overflow, num_rows, slot_of, {unit_bytes, least_bytes});
  const CodePath& code_path = path.empty() ? SelectCodePath() : CodePathByName(path.c_str());
  const NoGil no_gil;
  // A copy: another thread may write to the array.
  const std::vector<int64_t> bounds(offsets.data(), offsets.data() + Length(offsets));
  for (size_t b = 0; b < bounds.size(); ++b) {
    const int64_t least = b == 0 ? 0 : bounds[b - 1];
    if (bounds[b] < least || bounds[b] > Length(ids)) {
      Throw<ArgumentError>("offsets: want ", least, " to ", Length(ids), " at position ", b, ", got ", bounds[b]);
    }
  }
  CheckIds(ids, num_rows);
  Bags bags;
  bags.ids = ids.data();
  bags.offsets = bounds.data();
  bags.num_bags = Length(out);
  if (weights) bags.weights = weights->data();
  bags.padding_id = padding_id;
  bags.mode = static_cast<PoolMode>(mode);
  PoolRows(codec, code_path, rows, slot_of ? slot_of->data() : nullptr, bags, of_values, out.data(), threads);
}

void CheckCodes(int64_t format, int64_t num_values, int64_t codes_bytes) {
  CheckNarrowFloat(format);
  CheckEqual("codes bytes", num_values * NarrowBytes(static_cast<NarrowFloat>(format)), codes_bytes);
}

void BindNarrow(int64_t format, const CpuVector<const float>& values,
                const std::optional<CpuVector<const int32_t>>& random, const CpuVector<uint8_t>& codes, bool saturate,
                int threads) {
  CheckCodes(format, Length(values), Length(codes));
  if (random) CheckEqual("random", Length(values), Length(*random));
  const NoGil no_gil;
  NarrowValues(static_cast<NarrowFloat>(format), {saturate, random.has_value()}, values.data(),
               random ? reinterpret_cast<const uint32_t*>(random->data()) : nullptr, Length(values), codes.data(),
               threads);
}

void BindWiden(int64_t format, const CpuVector<const uint8_t>& codes, const CpuVector<float>& values, int threads) {
  CheckCodes(format, Length(values), Length(codes));
  const NoGil no_gil;
  WidenValues(static_cast<NarrowFloat>(format), codes.data(), Length(values), values.data(), threads);
}

}  // namespace

NB_MODULE(_cpu, m) {
  m.doc() = "CPU backend of ibp_gnn; use it through ibp_gnn.Codec and ibp_gnn.CompressedFeatureStore.";
  // A codec that a traceback keeps alive at exit is no bug.
  nb::set_leak_warnings(false);
  BindErrors(m);
  // Arrays are taken as they are (noconvert): a converted copy of an output would be written and thrown away.
  m.attr("FORMAT_VERSION") = kFormatVersion;
  m.attr("SLACK_BYTES") = kSlackBytes;
  m.attr("MAX_ROW_BYTES") = kMaxRowBytes;
  m.attr("OVERFLOW_INDEX_BYTES") = kOverflowIndexBytes;
  m.def(
      "advise_huge_pages", [](const CpuVector<uint8_t>& memory) { AdviseHugePages(memory.data(), Length(memory)); },
      nb::arg("memory").noconvert(), "Asks for large pages for memory that has not been written yet.");
  m.def("best_slot_bytes", &BindBestSlotBytes, nb::arg("rows_of_length").noconvert(), nb::arg("row_bytes"));
  m.def("best_lead_bytes", &BindBestLeadBytes, nb::arg("rows_of_length").noconvert(), nb::arg("slot_bytes"),
        nb::arg("fetches_once"));
  m.attr("PACKED_START_BITS") = kRecordStartBits;
  m.attr("ROWS_PER_RECORD") = kRowsPerRecord;
  m.def("directory_bytes", &DirectoryBytes, nb::arg("num_rows"));
  m.def("best_packing", &BindBestPacking, nb::arg("rows_of_length").noconvert(), nb::arg("row_bytes"),
        nb::arg("least_unit") = 1);
  m.def("lay_out", &BindLayOut, nb::kw_only(), nb::arg("payload_bytes").noconvert(), nb::arg("row_bytes"),
        nb::arg("slot_bytes"), nb::arg("unit_bytes"), nb::arg("least_bytes"), nb::arg("first_start"),
        nb::arg("directory").noconvert(), "Writes the directory of packed rows; returns where the last row ends.");
  m.def("find_packed", &BindFindPacked, nb::kw_only(), nb::arg("rows").noconvert(), nb::arg("row_bytes"),
        nb::arg("slot_bytes"), nb::arg("unit_bytes"), nb::arg("least_bytes"), nb::arg("directory").noconvert(),
        nb::arg("num_rows"), nb::arg("slots").noconvert(), nb::arg("starts").noconvert(),
        nb::arg("payload_bytes").noconvert());
  m.def("copy_packed", &BindCopyPacked, nb::kw_only(), nb::arg("rows").noconvert(), nb::arg("row_bytes"),
        nb::arg("slot_bytes"), nb::arg("unit_bytes"), nb::arg("least_bytes"), nb::arg("directory").noconvert(),
        nb::arg("num_rows"), nb::arg("slots").noconvert(), nb::arg("out_rows").noconvert(),
        nb::arg("out_directory").noconvert(), nb::arg("first_start"), nb::arg("threads"));
  m.def("bitmask_bytes", &BitmaskBytes, nb::arg("num_rows"));
  m.def("default_path", [] { return SelectCodePath().name; }, "Name of the code path that this CPU uses.");
  nb::class_<RowCodec>(m, "RowCodec")
      .def_ro("row_bytes", &RowCodec::row_bytes)
      .def("device_table_bytes", &RowCodec::DeviceTableBytes, nb::arg("encoder"))
      .def("write_device_tables", &BindDeviceTables, nb::arg("encoder"), nb::arg("tables").noconvert(),
           "The tables that a GPU reads; encoder: with those for encoding.");
  m.def(
      "codec", [](const char* name, const nb::kwargs& parameters) { return MakeCodec(name, ParametersOf(parameters)); },
      nb::arg("name"), nb::arg("parameters"), "A fitted codec (csrc/core/codec_list.h) with its form's parameters.");
  m.def("count_ones", &BindCountOnes, nb::arg("rows").noconvert(), nb::arg("ones").noconvert(), nb::arg("threads"));
  m.def("measure", &BindMeasure, nb::arg("codec"), nb::arg("rows").noconvert(), nb::arg("payload_bytes").noconvert(),
        nb::arg("threads"), nb::arg("path") = "");
  m.def("encode", &BindEncode, nb::arg("codec"), nb::arg("rows").noconvert(), nb::arg("overflow_index").noconvert(),
        nb::arg("slots").noconvert(), nb::arg("slot_bytes"), nb::arg("bitmask").noconvert(),
        nb::arg("overflow").noconvert(), nb::arg("threads"), nb::arg("path") = "", nb::arg("first_overflow") = 0,
        nb::arg("first_row") = 0, nb::arg("unit_bytes") = 0, nb::arg("least_bytes") = 0, nb::arg("first_start") = 0);
  m.def("decode", &BindDecode, nb::arg("codec"), nb::arg("slots").noconvert(), nb::arg("slot_bytes"),
        nb::arg("bitmask").noconvert(), nb::arg("overflow").noconvert(), nb::arg("num_rows"),
        nb::arg("ids").noconvert(), nb::arg("out").noconvert(), nb::arg("threads"), nb::arg("path") = "",
        nb::arg("slot_of").noconvert() = nb::none(), nb::arg("unit_bytes") = 0, nb::arg("least_bytes") = 0);
  m.def("stage_ids", &BindStageIds<int64_t>, nb::arg("ids").noconvert(), nb::arg("num_rows"),
        nb::arg("out").noconvert(), "Copies ids, and returns whether they all lie in [0, num_rows).");
  m.def("stage_ids", &BindStageIds<int32_t>, nb::arg("ids").noconvert(), nb::arg("num_rows"),
        nb::arg("out").noconvert());
  m.attr("POOL_PIECE_IDS") = kPieceIds;
  m.def("pool", &BindPool, nb::arg("codec"), nb::arg("slots").noconvert(), nb::arg("slot_bytes"),
        nb::arg("bitmask").noconvert(), nb::arg("overflow").noconvert(), nb::arg("num_rows"),
        nb::arg("ids").noconvert(), nb::arg("offsets").noconvert(), nb::arg("weights").noconvert().none(),
        nb::arg("padding_id"), nb::arg("mode"), nb::arg("type"), nb::arg("out").noconvert(), nb::arg("threads"),
        nb::arg("path") = "", nb::arg("slot_of").noconvert() = nb::none(), nb::arg("unit_bytes") = 0,
        nb::arg("least_bytes") = 0, "Pools bags of rows as core/pooling.h says; mode: a PoolMode, type: a PoolType.");
  m.def("narrow", &BindNarrow, nb::arg("format"), nb::arg("values").noconvert(), nb::arg("random").noconvert().none(),
        nb::arg("codes").noconvert(), nb::arg("saturate"), nb::arg("threads"),
        "Floats to codes of a NarrowFloat (core/narrow_floats.h); random: for stochastic rounding.");
  m.def("widen", &BindWiden, nb::arg("format"), nb::arg("codes").noconvert(), nb::arg("values").noconvert(),
        nb::arg("threads"), "Codes of a NarrowFloat to floats.");
}

}  // namespace ibp
