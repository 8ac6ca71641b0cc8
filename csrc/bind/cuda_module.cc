// ibp_gnn._cuda: checks shapes, calls. Everything is enqueued on the stream that is passed (its raw address), on the
// current device; nothing here synchronises.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "bind/ndarrays.h"
#include "core/ibp_tables.h"
#include "core/slot_buffers.h"
#include "cuda/cuda_check.h"
#include "cuda/host_memory.h"
#include "cuda/kernels.h"
#include "cuda/report_words.h"
#include "cuda/stream_uses.h"

namespace ibp {
namespace {

template <typename T>
using CudaVector = Vector<T, nb::device::cuda>;
template <typename T>
using CudaMatrix = Matrix<T, nb::device::cuda>;
using AnyCudaVector = nb::ndarray<nb::ndim<1>, nb::device::cuda, nb::c_contig>;

cudaStream_t Stream(uint64_t address) { return reinterpret_cast<cudaStream_t>(address); }

// torch has no full support for unsigned words, so tables come as signed ones and bitmask words as bytes.
DeviceIbpCodec MakeDeviceIbpCodec(const CudaMatrix<const int32_t>& tables, int64_t row_bytes, int64_t chunk_bits) {
  DeviceIbpCodec codec;
  codec.layout = MakeIbpLayout(row_bytes, chunk_bits);
  CheckEqual("tables", int64_t{kNumTables}, static_cast<int64_t>(tables.shape(0)));
  CheckEqual("units, padded", int64_t{TableStride(codec.layout.row_bytes)}, static_cast<int64_t>(tables.shape(1)));
  codec.tables_dev = reinterpret_cast<const uint32_t*>(tables.data());
  return codec;
}

DeviceDictCodec MakeDeviceDictCodec(int32_t num_values, int32_t value_bits, int32_t symbol_bits, int32_t trim_bits,
                                    int32_t code_bits, bool sign_low, bool zero_code, bool per_column,
                                    const CudaVector<const int16_t>& dictionary,
                                    const std::optional<CudaVector<const int64_t>>& packed,
                                    const std::optional<CudaVector<const uint8_t>>& code_of_symbol,
                                    const Vector<const uint16_t, nb::device::cpu>& escape_dictionary,
                                    const std::optional<CudaVector<const uint8_t>>& escape_code_of_symbol) {
  DeviceDictCodec codec;
  codec.layout =
      MakeDictLayout(num_values, value_bits, symbol_bits, trim_bits, code_bits, sign_low, zero_code, per_column);
  const int64_t columns = per_column ? num_values : 1;
  CheckEqual("dictionary entries", codec.layout.dictionary_entries(), Length(dictionary));
  if (packed) CheckEqual("packed", columns, Length(*packed));
  codec.dictionary_dev = reinterpret_cast<const uint16_t*>(dictionary.data());
  codec.packed_dev = packed ? reinterpret_cast<const uint64_t*>(packed->data()) : nullptr;
  CheckEqual("escape_dictionary entries", int64_t{kPlainSymbol}, Length(escape_dictionary));
  std::copy_n(escape_dictionary.data(), kPlainSymbol, codec.escape_dictionary);
  if (code_of_symbol.has_value() != escape_code_of_symbol.has_value()) {
    Throw<ArgumentError>("code_of_symbol and escape_code_of_symbol: want both or none of them");
  }
  if (code_of_symbol) {
    CheckEqual("code_of_symbol", columns << symbol_bits, Length(*code_of_symbol));
    CheckEqual("escape_code_of_symbol", int64_t{1} << symbol_bits, Length(*escape_code_of_symbol));
    codec.code_of_symbol_dev = code_of_symbol->data();
    codec.escape_code_of_symbol_dev = escape_code_of_symbol->data();
  }
  return codec;
}

void BindCountOnes(const CudaMatrix<const uint8_t>& rows, const CudaVector<int64_t>& ones, uint64_t stream) {
  const int64_t row_bytes = static_cast<int64_t>(rows.shape(1));
  CheckEqual("ones", 8 * row_bytes, Length(ones));
  LaunchCountOnes(rows.data(), Length(rows), static_cast<int32_t>(row_bytes), ones.data(), Stream(stream));
}

void CheckEncodes(const DeviceIbpCodec&) {}
void CheckEncodes(const DeviceDictCodec& codec) {
  if (codec.code_of_symbol_dev == nullptr) Throw<ArgumentError>("codec: want one with code_of_symbol, got one without");
}

template <typename Codec>
void CheckRows(const Codec& codec, const CudaMatrix<const uint8_t>& rows) {
  CheckEqual("row_bytes", int64_t{codec.layout.row_bytes}, static_cast<int64_t>(rows.shape(1)));
}

template <typename Codec>
void BindMeasure(const Codec& codec, const CudaMatrix<const uint8_t>& rows, const CudaVector<int32_t>& payload_bytes,
                 uint64_t stream) {
  CheckEncodes(codec);
  CheckRows(codec, rows);
  CheckEqual("payload_bytes", Length(rows), Length(payload_bytes));
  LaunchMeasure(codec, rows.data(), Length(rows), payload_bytes.data(), Stream(stream));
}

template <typename Codec>
void BindEncode(const Codec& codec, const CudaMatrix<const uint8_t>& rows,
                const CudaVector<const int64_t>& overflow_index, const CudaVector<uint8_t>& slots, int64_t slot_bytes,
                const CudaVector<uint8_t>& bitmask, const CudaVector<uint8_t>& overflow,
                const CudaVector<uint8_t>& scratch, const CudaVector<int64_t>& changed_row, uint64_t stream) {
  CheckEncodes(codec);
  CheckRows(codec, rows);
  const int64_t n = Length(rows);
  CheckEqual("overflow_index", n, Length(overflow_index));
  CheckSlotBuffers(codec.layout.row_bytes, n, slot_bytes, Length(slots), Length(bitmask), Length(overflow));
  CheckAtLeast("scratch bytes", EncodeScratchBytes(codec.layout), Length(scratch));
  CheckEqual("changed_row", 1, Length(changed_row));
  EncodeTarget target;
  target.slots = slots.data();
  target.slot_bytes = static_cast<int32_t>(slot_bytes);
  target.bitmask = reinterpret_cast<uint32_t*>(bitmask.data());
  target.overflow = overflow.data();
  target.num_overflow = (Length(overflow) - kSlackBytes) / codec.layout.row_bytes;
  target.overflow_index = overflow_index.data();
  target.changed_row = reinterpret_cast<unsigned long long*>(changed_row.data());
  LaunchEncode(codec, rows.data(), n, target, scratch.data(), Stream(stream));
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
  DeviceRows Checked(int64_t row_bytes, int64_t slot_bytes) const {
    CheckSlotBuffers(row_bytes, rows.num_rows, slot_bytes, slots_length, bitmask_length, overflow_length);
    DeviceRows checked = rows;
    checked.num_overflow = (overflow_length - kSlackBytes) / row_bytes;
    return checked;
  }
};

// What gathers of a plan and of those that follow it tell the host: {GatherError, the id} of the first bad row, then
// the counters as they were when a gather that was told to show them had run.
class GatherReport {
 public:
  int64_t error() const { return words_.words()[kErrorWord]; }
  int64_t error_id() const { return words_.words()[kErrorWord + 1]; }
  void ClearError() { words_.words()[kErrorWord] = kNoError; }
  nb::tuple Seen() const {
    const volatile int64_t* seen = words_.words() + kSeenWord;
    return nb::make_tuple(int64_t{seen[kHits]}, int64_t{seen[kMisses]});
  }
  int64_t* error_words() const { return const_cast<int64_t*>(words_.words() + kErrorWord); }
  int64_t* seen_words() const { return const_cast<int64_t*>(words_.words() + kSeenWord); }

 private:
  static constexpr int kErrorWord = 0, kSeenWord = 2;
  static_assert(kSeenWord + kNumGatherCounters <= ReportWords::kNumReportWords);
  ReportWords words_;
};

// All that stays the same from gather to gather. Keeps what its addresses lie in alive (`owners`), and lets go of it
// only when every gather that was launched has run, on whatever stream.
template <typename Codec>
struct GatherPlan {
  nb::object owners;
  std::shared_ptr<GatherReport> report;
  Codec codec;
  GatherRequest request;
  int device;
  std::unique_ptr<StreamUses> uses;

  GatherPlan(const Codec& codec_, const RowBuffers& store, const std::optional<RowBuffers>& cache,
             const std::optional<CudaVector<const int32_t>>& place, int64_t store_offset, int64_t slot_bytes,
             int64_t lead_bytes, const CudaVector<int64_t>& counters, std::shared_ptr<GatherReport> report_,
             const std::optional<CudaVector<int32_t>>& touched, nb::object owners_)
      : owners(std::move(owners_)),
        report(std::move(report_)),
        codec(codec_),
        device(counters.device_id()),
        uses(std::make_unique<StreamUses>(device)) {
    request.store = store.Checked(codec.layout.row_bytes, slot_bytes);
    if (lead_bytes < 1 || lead_bytes > slot_bytes) {
      Throw<ArgumentError>("lead_bytes: want 1 to ", slot_bytes, ", got ", lead_bytes);
    }
    CheckEqual("counters", int64_t{kNumGatherCounters}, Length(counters));
    if (cache) request.cache = cache->Checked(codec.layout.row_bytes, slot_bytes);
    if (place) {
      CheckEqual("place", store.rows.num_rows, Length(*place));
      request.place_dev = place->data();
    }
    if (store_offset != 0) CheckEqual("store_offset", request.cache.num_rows, store_offset);
    request.store_offset = store_offset;
    request.slot_bytes = static_cast<int32_t>(slot_bytes);
    request.lead_bytes = static_cast<int32_t>(lead_bytes);
    request.counters_dev = counters.data();
    request.error = report->error_words();
    if (touched) {
      CheckEqual("touched", CeilDiv(request.num_places(), 32), Length(*touched));
      request.touched_dev = reinterpret_cast<uint32_t*>(touched->data());
    }
  }
  GatherPlan(GatherPlan&&) = default;
  ~GatherPlan() {
    if (!uses) return;  // moved from
    Wait(false);
    // A forked child has no CUDA: some of torch's allocators end the process that frees memory there.
    if (uses->OfAnotherProcess()) owners.release();
  }

  void Wait(bool replays_too) {
    const nb::gil_scoped_release no_gil;
    uses->Wait(replays_too);
  }

  // Also where a launch fails after others of the same gather.
  struct RecordAtEnd {
    StreamUses& uses;
    cudaStream_t stream;
    ~RecordAtEnd() { uses.Record(stream); }
  };

  GatherRequest Request(const AnyCudaVector& ids) const {
    GatherRequest now = request;
    now.ids_are_int64 = ids.dtype() == nb::dtype<int64_t>();
    if (!now.ids_are_int64 && ids.dtype() != nb::dtype<int32_t>()) Throw<ArgumentError>("ids: want int32 or int64");
    now.ids_dev = ids.data();
    now.num_ids = static_cast<int64_t>(ids.shape(0));
    return now;
  }

  int64_t OrderScratch(int64_t num_ids) const {
    CheckOrderable(num_ids);
    const DeviceGuard guard(device);
    return OrderScratchBytes(request, num_ids);
  }

  void CheckOrderable(int64_t num_ids) const {
    if (num_ids > INT32_MAX) Throw<ArgumentError>("ids: want at most ", INT32_MAX, " to order, got ", num_ids);
    if (request.num_places() >= UINT32_MAX)
      Throw<ArgumentError>("rows and cached rows: want less than ", UINT32_MAX, " to order, got ",
                           request.num_places());
  }

  // order_scratch, if the rows are to be fetched in order of their places: [OrderScratch(ids)]. shows: whether the
  // report is to show the counters after it.
  void Gather(const AnyCudaVector& ids, const std::optional<CudaVector<uint8_t>>& order_scratch,
              const CudaMatrix<uint8_t>& out, int max_blocks, bool shows, uint64_t stream) const {
    CheckEqual("device of ids", device, ids.device_id());
    CheckEqual("device of out", device, out.device_id());
    const DeviceGuard guard(device);
    GatherRequest now = Request(ids);
    CheckEqual("out rows", now.num_ids, Length(out));
    CheckEqual("out row_bytes", int64_t{codec.layout.row_bytes}, static_cast<int64_t>(out.shape(1)));
    now.out_dev = out.data();
    now.max_blocks = max_blocks;
    if (order_scratch) CheckAtLeast("order_scratch", OrderScratch(now.num_ids), Length(*order_scratch));
    const RecordAtEnd record{*uses, Stream(stream)};
    if (order_scratch) LaunchOrder(now, order_scratch->data(), Length(*order_scratch), Stream(stream));
    LaunchGather(codec, now, Stream(stream));
    if (shows && !IsCapturing(Stream(stream))) {
      IBP_CUDA_CHECK(cudaMemcpyAsync(report->seen_words(), request.counters_dev, kNumGatherCounters * sizeof(int64_t),
                                     cudaMemcpyDeviceToHost, Stream(stream)));
    }
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

void BindScatterRows(const CudaMatrix<const uint8_t>& rows, const CudaVector<const int64_t>& at,
                     const CudaMatrix<uint8_t>& out, uint64_t stream) {
  CheckEqual("at", Length(rows), Length(at));
  CheckEqual("row_bytes", static_cast<int64_t>(rows.shape(1)), static_cast<int64_t>(out.shape(1)));
  LaunchScatterRows(rows.data(), static_cast<int32_t>(rows.shape(1)), at.data(), Length(at), out.data(), Length(out),
                    Stream(stream));
}

// What a codec can do, under the same names for every codec.
template <typename Codec>
void BindCodec(nb::module_& m, const char* plan_name) {
  m.def("measure", &BindMeasure<Codec>, nb::arg("codec"), nb::arg("rows").noconvert(),
        nb::arg("payload_bytes").noconvert(), nb::arg("stream"));
  m.def("encode_scratch_bytes", [](const Codec& codec) { return EncodeScratchBytes(codec.layout); }, nb::arg("codec"));
  m.def("encode", &BindEncode<Codec>, nb::arg("codec"), nb::arg("rows").noconvert(),
        nb::arg("overflow_index").noconvert(), nb::arg("slots").noconvert(), nb::arg("slot_bytes"),
        nb::arg("bitmask").noconvert(), nb::arg("overflow").noconvert(), nb::arg("scratch").noconvert(),
        nb::arg("changed_row").noconvert(), nb::arg("stream"));
  using Plan = GatherPlan<Codec>;
  nb::class_<Plan>(m, plan_name)
      .def("order_scratch_bytes", &Plan::OrderScratch, nb::arg("num_ids"))
      .def("gather", &Plan::Gather, nb::arg("ids").noconvert(), nb::arg("order_scratch").noconvert().none(),
           nb::arg("out").noconvert(), nb::arg("max_blocks"), nb::arg("shows"), nb::arg("stream"))
      .def(
          "wait", [](Plan& plan) { plan.Wait(true); },
          "Until all gathers that were launched so far have run, those of replayed graphs among them.");
  m.def(
      "make_gather_plan",
      [](const Codec& codec, const RowBuffers& store, const std::optional<RowBuffers>& cache,
         const std::optional<CudaVector<const int32_t>>& place, int64_t store_offset, int64_t slot_bytes,
         int64_t lead_bytes, const CudaVector<int64_t>& counters, const std::shared_ptr<GatherReport>& report,
         const std::optional<CudaVector<int32_t>>& touched, const nb::object& owners) {
        return Plan(codec, store, cache, place, store_offset, slot_bytes, lead_bytes, counters, report, touched,
                    owners);
      },
      nb::arg("codec"), nb::arg("store"), nb::arg("cache").none(), nb::arg("place").noconvert().none(),
      nb::arg("store_offset"), nb::arg("slot_bytes"), nb::arg("lead_bytes"), nb::arg("counters").noconvert(),
      nb::arg("report"), nb::arg("touched").noconvert().none(), nb::arg("owners"));
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.doc() = "CUDA backend of ibp_gnn; use it through ibp_gnn.Codec, CompressedFeatureStore and CompressedGPUCache.";
  // A codec that a traceback keeps alive at exit is no bug.
  nb::set_leak_warnings(false);
  BindErrors(m);
  // Arrays are taken as they are (noconvert): a converted copy of an output would be written and thrown away.
  m.attr("ARCHITECTURES") = IBP_CUDA_ARCHITECTURES;  // as CMake names them, separated by commas
  m.attr("NUM_COUNTERS") = static_cast<int>(kNumGatherCounters);
  m.attr("ID_OUT_OF_RANGE") = static_cast<int64_t>(kIdOutOfRange);
  m.attr("DAMAGED_ROW") = static_cast<int64_t>(kDamagedRow);
  m.def("count_ones", &BindCountOnes, nb::arg("rows").noconvert(), nb::arg("ones").noconvert(), nb::arg("stream"));
  nb::class_<DeviceIbpCodec>(m, "DeviceIbpCodec")
      .def(
          "__init__",
          [](DeviceIbpCodec* self, const CudaMatrix<const int32_t>& tables, int64_t row_bytes, int64_t chunk_bits) {
            new (self) DeviceIbpCodec(MakeDeviceIbpCodec(tables, row_bytes, chunk_bits));
          },
          nb::arg("tables").noconvert(), nb::arg("row_bytes"), nb::arg("chunk_bits"));
  nb::class_<DeviceDictCodec>(m, "DeviceDictCodec")
      .def(
          "__init__",
          [](DeviceDictCodec* self, int32_t num_values, int32_t value_bits, int32_t symbol_bits, int32_t trim_bits,
             int32_t code_bits, bool sign_low, bool zero_code, bool per_column,
             const CudaVector<const int16_t>& dictionary, const std::optional<CudaVector<const int64_t>>& packed,
             const std::optional<CudaVector<const uint8_t>>& code_of_symbol,
             const Vector<const uint16_t, nb::device::cpu>& escape_dictionary,
             const std::optional<CudaVector<const uint8_t>>& escape_code_of_symbol) {
            new (self) DeviceDictCodec(MakeDeviceDictCodec(num_values, value_bits, symbol_bits, trim_bits, code_bits,
                                                           sign_low, zero_code, per_column, dictionary, packed,
                                                           code_of_symbol, escape_dictionary, escape_code_of_symbol));
          },
          nb::kw_only(), nb::arg("num_values"), nb::arg("value_bits"), nb::arg("symbol_bits"), nb::arg("trim_bits"),
          nb::arg("code_bits"), nb::arg("sign_low"), nb::arg("zero_code"), nb::arg("per_column"),
          nb::arg("dictionary").noconvert(), nb::arg("packed").noconvert().none(),
          nb::arg("code_of_symbol").noconvert().none(), nb::arg("escape_dictionary").noconvert(),
          nb::arg("escape_code_of_symbol").noconvert().none());
  m.def("copy_rows", &BindCopyRows, nb::arg("rows"), nb::arg("ids").noconvert(),
        nb::arg("positions").noconvert().none(), nb::arg("out").noconvert(), nb::arg("max_blocks"), nb::arg("stream"),
        "Gathers uncompressed rows; ids are not checked. For benchmarks.");
  m.def("scatter_rows", &BindScatterRows, nb::arg("rows").noconvert(), nb::arg("at").noconvert(),
        nb::arg("out").noconvert(), nb::arg("stream"),
        "out[at[i]] = rows[i], all uint8 [n, row_bytes]. Allocates nothing.");
  // Page-locking takes seconds for gigabytes: other Python threads go on meanwhile.
  m.def(
      "register_host_memory",
      [](uint64_t address, int64_t bytes) { return RegisterHostMemory(reinterpret_cast<void*>(address), bytes); },
      nb::arg("address"), nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(),
      "Page-locks and maps host memory, for all GPUs, by the current one; returns its device address.");
  m.def(
      "unregister_host_memory", [](uint64_t address) { UnregisterHostMemory(reinterpret_cast<void*>(address)); },
      nb::arg("address"), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<RowBuffers>(m, "RowBuffers")
      .def(nb::init<uint64_t, int64_t, uint64_t, int64_t, uint64_t, int64_t, int64_t>(), nb::arg("slots"),
           nb::arg("slots_length"), nb::arg("bitmask"), nb::arg("bitmask_length"), nb::arg("overflow"),
           nb::arg("overflow_length"), nb::arg("num_rows"));
  nb::class_<GatherReport>(m, "GatherReport")
      .def(nb::init<>())
      .def_prop_ro("error", &GatherReport::error, "A GatherError: what is wrong with the first bad row; 0: nothing.")
      .def_prop_ro("error_id", &GatherReport::error_id, "The id of that row.")
      .def_prop_ro("seen", &GatherReport::Seen, "(hits, misses) of the last gather that has run and showed them.")
      .def("clear_error", &GatherReport::ClearError);
  BindCodec<DeviceIbpCodec>(m, "IbpGatherPlan");
  BindCodec<DeviceDictCodec>(m, "DictGatherPlan");
}

}  // namespace ibp
