// ibp_gnn._cuda: checks shapes, calls. Everything is enqueued on the stream that is passed (its raw address), on the
// current device; nothing here synchronises.
#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/ndarrays.h"
#include "core/ibp_tables.h"
#include "cuda/host_memory.h"
#include "cuda/kernels.h"

namespace ibp {
namespace {

template <typename T>
using CudaVector = Vector<T, nb::device::cuda>;
template <typename T>
using CudaMatrix = Matrix<T, nb::device::cuda>;
using AnyCudaVector = nb::ndarray<nb::ndim<1>, nb::device::cuda, nb::c_contig>;

cudaStream_t Stream(uint64_t address) { return reinterpret_cast<cudaStream_t>(address); }

// torch has no full support for uint32, so tables and bitmask words come as int32 and bytes.
DeviceCodec MakeDeviceCodec(const CudaMatrix<const int32_t>& tables, int64_t row_bytes, int64_t chunk_bits) {
  DeviceCodec codec;
  codec.layout = MakeIbpLayout(row_bytes, chunk_bits);
  CheckEqual("tables", int64_t{kNumTables}, static_cast<int64_t>(tables.shape(0)));
  CheckEqual("units, padded", int64_t{TableStride(codec.layout.row_bytes)}, static_cast<int64_t>(tables.shape(1)));
  codec.tables_dev = reinterpret_cast<const uint32_t*>(tables.data());
  return codec;
}

void BindCountOnes(const CudaMatrix<const uint8_t>& rows, const CudaVector<int64_t>& ones, uint64_t stream) {
  const int64_t row_bytes = static_cast<int64_t>(rows.shape(1));
  CheckEqual("ones", 8 * row_bytes, Length(ones));
  LaunchCountOnes(rows.data(), Length(rows), static_cast<int32_t>(row_bytes), ones.data(), Stream(stream));
}

void BindMeasure(const CudaMatrix<const int32_t>& tables, int64_t chunk_bits, const CudaMatrix<const uint8_t>& rows,
                 const CudaVector<int32_t>& payload_bytes, uint64_t stream) {
  const DeviceCodec codec = MakeDeviceCodec(tables, static_cast<int64_t>(rows.shape(1)), chunk_bits);
  CheckEqual("payload_bytes", Length(rows), Length(payload_bytes));
  LaunchMeasure(codec, rows.data(), Length(rows), payload_bytes.data(), Stream(stream));
}

void BindEncode(const CudaMatrix<const int32_t>& tables, int64_t chunk_bits, const CudaMatrix<const uint8_t>& rows,
                const CudaVector<const int64_t>& overflow_index, const CudaVector<uint8_t>& slots, int64_t slot_bytes,
                const CudaVector<uint8_t>& bitmask, const CudaVector<uint8_t>& overflow,
                const CudaVector<uint8_t>& scratch, uint64_t stream) {
  const DeviceCodec codec = MakeDeviceCodec(tables, static_cast<int64_t>(rows.shape(1)), chunk_bits);
  const int64_t n = Length(rows);
  CheckEqual("overflow_index", n, Length(overflow_index));
  CheckSlotBuffers(codec.layout, n, slot_bytes, Length(slots), Length(bitmask), Length(overflow));
  CheckAtLeast("scratch bytes", EncodeScratchBytes(codec.layout), Length(scratch));
  LaunchEncode(codec, rows.data(), n, overflow_index.data(), slots.data(), static_cast<int32_t>(slot_bytes),
               reinterpret_cast<uint32_t*>(bitmask.data()), overflow.data(), scratch.data(), Stream(stream));
}

// Buffers by address and length, because slots and overflow may be mapped host memory, which no array type describes.
struct RowBuffers {
  DeviceRows rows;
  int64_t slots_length, bitmask_length, overflow_length;

  RowBuffers(uint64_t slots, int64_t slots_length_, uint64_t bitmask, int64_t bitmask_length_, uint64_t overflow,
             int64_t overflow_length_, int64_t num_rows)
      : slots_length(slots_length_), bitmask_length(bitmask_length_), overflow_length(overflow_length_) {
    rows.slots = reinterpret_cast<const uint8_t*>(slots);
    rows.bitmask = reinterpret_cast<const uint32_t*>(bitmask);
    rows.overflow = reinterpret_cast<const uint8_t*>(overflow);
    rows.num_rows = num_rows;
  }
  DeviceRows Checked(const IbpLayout& layout, int64_t slot_bytes) const {
    CheckSlotBuffers(layout, rows.num_rows, slot_bytes, slots_length, bitmask_length, overflow_length);
    DeviceRows checked = rows;
    checked.num_overflow = (overflow_length - kSlackBytes) / layout.row_bytes;
    return checked;
  }
};

// All that stays the same from gather to gather. The arrays behind the addresses belong to the caller.
struct GatherPlan {
  DeviceCodec codec;
  GatherRequest request;

  GatherPlan(const CudaMatrix<const int32_t>& tables, int64_t row_bytes, int64_t chunk_bits, const RowBuffers& store,
             const std::optional<RowBuffers>& cache, const std::optional<CudaVector<const int32_t>>& cache_slot,
             int64_t slot_bytes, int64_t lead_bytes, const CudaVector<int64_t>& counters, uint64_t error)
      : codec(MakeDeviceCodec(tables, row_bytes, chunk_bits)) {
    request.store = store.Checked(codec.layout, slot_bytes);
    if (lead_bytes < 1 || lead_bytes > slot_bytes) {
      Throw<ArgumentError>("lead_bytes: want 1 to ", slot_bytes, ", got ", lead_bytes);
    }
    CheckEqual("counters", int64_t{kNumGatherCounters}, Length(counters));
    CheckEqual("cache_slot given", cache.has_value(), cache_slot.has_value());
    if (cache) {
      CheckEqual("cache_slot", store.rows.num_rows, Length(*cache_slot));
      request.cache = cache->Checked(codec.layout, slot_bytes);
      request.cache_slot_dev = cache_slot->data();
    }
    request.slot_bytes = static_cast<int32_t>(slot_bytes);
    request.lead_bytes = static_cast<int32_t>(lead_bytes);
    request.counters_dev = counters.data();
    request.error = reinterpret_cast<int64_t*>(error);
  }

  void Gather(const AnyCudaVector& ids, const std::optional<CudaVector<const int64_t>>& positions,
              const CudaMatrix<uint8_t>& out, int max_blocks, uint64_t stream) const {
    const bool int64_ids = ids.dtype() == nb::dtype<int64_t>();
    if (!int64_ids && ids.dtype() != nb::dtype<int32_t>()) Throw<ArgumentError>("ids: want int32 or int64");
    CheckEqual("out rows", static_cast<int64_t>(ids.shape(0)), Length(out));
    CheckEqual("out row_bytes", int64_t{codec.layout.row_bytes}, static_cast<int64_t>(out.shape(1)));
    if (positions) CheckEqual("positions", static_cast<int64_t>(ids.shape(0)), Length(*positions));
    GatherRequest now = request;
    now.ids_dev = ids.data();
    now.ids_are_int64 = int64_ids;
    now.positions_dev = positions ? positions->data() : nullptr;
    now.num_ids = static_cast<int64_t>(ids.shape(0));
    now.out_dev = out.data();
    now.max_blocks = max_blocks;
    LaunchGather(codec, now, Stream(stream));
  }
};

void BindCopyRows(uint64_t rows, const CudaVector<const int64_t>& ids,
                  const std::optional<CudaVector<const int64_t>>& positions, const CudaMatrix<uint8_t>& out,
                  int max_blocks, uint64_t stream) {
  CheckEqual("out rows", Length(ids), Length(out));
  if (positions) CheckEqual("positions", Length(ids), Length(*positions));
  LaunchCopyRows(reinterpret_cast<const uint8_t*>(rows), static_cast<int32_t>(out.shape(1)), ids.data(),
                 positions ? positions->data() : nullptr, Length(ids), out.data(), max_blocks, Stream(stream));
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.doc() = "CUDA backend of ibp_gnn; use it through ibp_gnn.Codec, CompressedFeatureStore and CompressedGPUCache.";
  // A codec that a traceback keeps alive at exit is no bug.
  nb::set_leak_warnings(false);
  BindErrors(m);
  m.attr("NUM_COUNTERS") = static_cast<int>(kNumGatherCounters);
  m.attr("ID_OUT_OF_RANGE") = static_cast<int64_t>(kIdOutOfRange);
  m.attr("DAMAGED_ROW") = static_cast<int64_t>(kDamagedRow);
  m.def("count_ones", &BindCountOnes, nb::arg("rows"), nb::arg("ones"), nb::arg("stream"));
  m.def("measure", &BindMeasure, nb::arg("tables"), nb::arg("chunk_bits"), nb::arg("rows"), nb::arg("payload_bytes"),
        nb::arg("stream"));
  m.def(
      "encode_scratch_bytes",
      [](int64_t row_bytes, int64_t chunk_bits) { return EncodeScratchBytes(MakeIbpLayout(row_bytes, chunk_bits)); },
      nb::arg("row_bytes"), nb::arg("chunk_bits"));
  m.def("encode", &BindEncode, nb::arg("tables"), nb::arg("chunk_bits"), nb::arg("rows"), nb::arg("overflow_index"),
        nb::arg("slots"), nb::arg("slot_bytes"), nb::arg("bitmask"), nb::arg("overflow"), nb::arg("scratch"),
        nb::arg("stream"));
  m.def("copy_rows", &BindCopyRows, nb::arg("rows"), nb::arg("ids"), nb::arg("positions").none(), nb::arg("out"),
        nb::arg("max_blocks"), nb::arg("stream"), "Gathers uncompressed rows; ids are not checked. For benchmarks.");
  m.def(
      "register_host_memory",
      [](uint64_t address, int64_t bytes) { return RegisterHostMemory(reinterpret_cast<void*>(address), bytes); },
      nb::arg("address"), nb::arg("bytes"), "Page-locks and maps host memory; returns its device address.");
  m.def(
      "unregister_host_memory", [](uint64_t address) { UnregisterHostMemory(reinterpret_cast<void*>(address)); },
      nb::arg("address"));
  nb::class_<RowBuffers>(m, "RowBuffers")
      .def(nb::init<uint64_t, int64_t, uint64_t, int64_t, uint64_t, int64_t, int64_t>(), nb::arg("slots"),
           nb::arg("slots_length"), nb::arg("bitmask"), nb::arg("bitmask_length"), nb::arg("overflow"),
           nb::arg("overflow_length"), nb::arg("num_rows"));
  nb::class_<GatherPlan>(m, "GatherPlan")
      .def(nb::init<const CudaMatrix<const int32_t>&, int64_t, int64_t, const RowBuffers&,
                    const std::optional<RowBuffers>&, const std::optional<CudaVector<const int32_t>>&, int64_t, int64_t,
                    const CudaVector<int64_t>&, uint64_t>(),
           nb::arg("tables"), nb::arg("row_bytes"), nb::arg("chunk_bits"), nb::arg("store"), nb::arg("cache").none(),
           nb::arg("cache_slot").none(), nb::arg("slot_bytes"), nb::arg("lead_bytes"), nb::arg("counters"),
           nb::arg("error"))
      .def("gather", &GatherPlan::Gather, nb::arg("ids"), nb::arg("positions").none(), nb::arg("out"),
           nb::arg("max_blocks"), nb::arg("stream"));
}

}  // namespace ibp
