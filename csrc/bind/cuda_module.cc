// ibp_gnn._cuda: checks shapes, calls. Everything is enqueued on the stream that is passed (its raw address), on the
// current device; nothing here synchronises.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "bind/codec_parameters.h"
#include "bind/cuda_packing.h"
#include "bind/ndarrays.h"
#include "core/slot_buffers.h"
#include "cuda/copy_rows.h"
#include "cuda/cuda_check.h"
#include "cuda/fit_ibp.h"
#include "cuda/gather_plan.h"
#include "cuda/gpu_codec.h"
#include "cuda/host_memory.h"
#include "cuda/pool_plan.h"
#include "cuda/pool_rows.h"

namespace ibp {
namespace {

template <typename T>
using CudaVector = Vector<T, nb::device::cuda>;
template <typename T>
using CudaMatrix = Matrix<T, nb::device::cuda>;

cudaStream_t Stream(uint64_t address) { return reinterpret_cast<cudaStream_t>(address); }

template <typename T>
T* Pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

std::shared_ptr<GpuCodec> BindCodec(const char* name, const CudaVector<const uint8_t>& tables,
                                    const nb::kwargs& parameters) {
  return MakeGpuCodec(name, ParametersOf(parameters), tables.data(), Length(tables));
}

void CheckRows(const GpuCodec& codec, const CudaMatrix<const uint8_t>& rows) {
  CheckEqual("row_bytes", int64_t{codec.row_bytes()}, static_cast<int64_t>(rows.shape(1)));
}

void BindMeasure(const GpuCodec& codec, const CudaMatrix<const uint8_t>& rows, const CudaVector<int32_t>& payload_bytes,
                 uint64_t stream) {
  CheckRows(codec, rows);
  CheckEqual("payload_bytes", Length(rows), Length(payload_bytes));
  codec.Measure(rows.data(), Length(rows), payload_bytes.data(), Stream(stream));
}

void BindEncode(const GpuCodec& codec, const CudaMatrix<const uint8_t>& rows,
                const CudaVector<const int64_t>& overflow_index, const CudaVector<uint8_t>& slots, int64_t slot_bytes,
                const CudaVector<uint8_t>& bitmask, const CudaVector<uint8_t>& overflow,
                const CudaVector<uint8_t>& scratch, const CudaVector<int64_t>& changed_row, uint64_t stream) {
  CheckRows(codec, rows);
  const int64_t n = Length(rows);
  CheckEqual("overflow_index", n, Length(overflow_index));
  CheckSlotBuffers(codec.row_bytes(), n, slot_bytes, Length(slots), Length(bitmask), Length(overflow));
  CheckAtLeast("scratch bytes", codec.EncodeScratchBytes(), Length(scratch));
  CheckEqual("changed_row", 1, Length(changed_row));
  EncodeTarget target;
  target.slots = slots.data();
  target.slot_bytes = static_cast<int32_t>(slot_bytes);
  target.bitmask = reinterpret_cast<uint32_t*>(bitmask.data());
  target.overflow = overflow.data();
  target.num_overflow = (Length(overflow) - kSlackBytes) / codec.row_bytes();
  target.overflow_index = overflow_index.data();
  target.changed_row = reinterpret_cast<unsigned long long*>(changed_row.data());
  codec.Encode(rows.data(), n, target, scratch.data(), Stream(stream));
}

void BindEncodeOnce(const GpuCodec& codec, const CudaMatrix<const uint8_t>& rows, const CudaVector<uint8_t>& slots,
                    int64_t slot_bytes, const CudaVector<uint8_t>& bitmask, const CudaVector<uint8_t>& overflow,
                    const CudaVector<int64_t>& overflow_count, uint64_t stream) {
  CheckRows(codec, rows);
  const int64_t n = Length(rows);
  CheckSlotBuffers(codec.row_bytes(), n, slot_bytes, Length(slots), Length(bitmask), Length(overflow));
  CheckEqual("overflow_count", 1, Length(overflow_count));
  if (!codec.CanEncodeOnce(slot_bytes)) {
    Throw<ArgumentError>("codec: want one that encodes in one pass to slots of ", slot_bytes, " bytes");
  }
  EncodeOnceTarget target;
  target.slots = slots.data();
  target.slot_bytes = static_cast<int32_t>(slot_bytes);
  target.bitmask = reinterpret_cast<uint32_t*>(bitmask.data());
  target.overflow = overflow.data();
  target.num_overflow = (Length(overflow) - kSlackBytes) / codec.row_bytes();
  target.overflow_count = reinterpret_cast<unsigned long long*>(overflow_count.data());
  if ((reinterpret_cast<uintptr_t>(target.slots) | reinterpret_cast<uintptr_t>(target.bitmask)) % 4 != 0) {
    Throw<ArgumentError>("slots and bitmask: want them at multiples of 4 bytes");
  }
  codec.EncodeOnce(rows.data(), n, target, Stream(stream));
}

// By address and length, because slots and overflow may be mapped host memory, which no array type describes.
PlanSegment BindSegment(uint64_t slots, int64_t slots_bytes, uint64_t bitmask, int64_t bitmask_bytes, uint64_t overflow,
                        int64_t overflow_bytes, int64_t num_rows, int64_t first_place, int64_t origin, bool hits) {
  PlanSegment segment;
  segment.rows = {Pointer<const uint8_t>(slots),
                  slots_bytes,
                  Pointer<const uint32_t>(bitmask),
                  bitmask_bytes,
                  Pointer<const uint8_t>(overflow),
                  overflow_bytes,
                  num_rows};
  segment.first_place = first_place;
  segment.origin = origin;
  segment.hits = hits;
  return segment;
}

std::shared_ptr<const void> Keep(const nb::object& object) {
  nb::object own = object;
  return std::shared_ptr<const void>(own.release().ptr(), [](const void* kept) {
    const nb::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(const_cast<void*>(kept)));
  });
}

// Other Python threads go on while it waits at its end.
struct BoundPlan : GatherPlan {
  using GatherPlan::GatherPlan;
  ~BoundPlan() {
    const nb::gil_scoped_release no_gil;
    WaitAtEnd();
  }
};

std::unique_ptr<BoundPlan> MakePlan(const std::shared_ptr<GpuCodec>& codec, const std::vector<PlanSegment>& segments,
                                    int64_t num_rows, const std::optional<CudaVector<const int32_t>>& place,
                                    int64_t slot_bytes, int64_t lead_bytes, const CudaVector<int64_t>& counters,
                                    const std::shared_ptr<GatherReport>& report,
                                    const std::optional<CudaVector<int32_t>>& touched, int miss_blocks,
                                    int64_t order_from_bytes, int64_t order_from_misses, const nb::object& owners,
                                    int32_t unit_bytes, int32_t least_bytes) {
  CheckEqual("counters", int64_t{kNumGatherCounters}, Length(counters));
  PlanOptions options;
  options.slot_bytes = slot_bytes;
  options.packing = {unit_bytes, least_bytes};
  options.lead_bytes = lead_bytes;
  options.num_rows = num_rows;
  if (place) {
    CheckEqual("place", num_rows, Length(*place));
    options.place_dev = place->data();
  }
  options.counters_dev = counters.data();
  if (touched) options.touched_dev = reinterpret_cast<uint32_t*>(touched->data());
  options.miss_blocks = miss_blocks;
  options.order_from_bytes = order_from_bytes;
  options.order_from_misses = order_from_misses;
  auto plan = std::make_unique<BoundPlan>(counters.device_id(), codec, segments, options, report, Keep(owners));
  if (touched) CheckEqual("touched", CeilDiv(plan->num_places(), 32), Length(*touched));
  return plan;
}

// By address, and checked by whoever calls: an array of nanobind's takes longer than a launch.
int64_t BindGather(BoundPlan& plan, uint64_t ids, bool ids_are_int64, int64_t first_id, int64_t num_ids, uint64_t out,
                   int64_t out_bytes, std::optional<bool> ordered, std::optional<int> max_blocks,
                   uint64_t order_scratch, int64_t order_scratch_bytes, uint64_t stream) {
  CheckEqual("out bytes", num_ids * plan.row_bytes(), out_bytes);
  return plan.Gather(Pointer<const void>(ids), ids_are_int64, first_id, num_ids, Pointer<uint8_t>(out),
                     {ordered, max_blocks}, Pointer<uint8_t>(order_scratch), order_scratch_bytes, Stream(stream));
}

PoolMode CheckedMode(int mode) {
  if (mode < 0 || mode > static_cast<int>(PoolMode::kMax)) Throw<ArgumentError>("mode: want 0 to 2, got ", mode);
  return static_cast<PoolMode>(mode);
}

PoolType CheckedType(int type) {
  if (type < 0 || type > static_cast<int>(PoolType::kBfloat16)) Throw<ArgumentError>("type: want 0 to 2, got ", type);
  return static_cast<PoolType>(type);
}

// Features: (plan, key, mode, padding_id, out_column_bytes) each.
using BoundFeature = std::tuple<BoundPlan*, int32_t, int, int64_t, int64_t>;

std::unique_ptr<PoolPlan> MakePoolPlan(int device, const std::vector<BoundFeature>& features) {
  std::vector<PoolFeatureOptions> options;
  for (const auto& [plan, key, mode, padding_id, out_column_bytes] : features) {
    options.push_back({plan, key, CheckedMode(mode), padding_id, out_column_bytes});
  }
  return std::make_unique<PoolPlan>(device, options);
}

// By address, and checked by whoever calls, as in BindGather.
PoolRequest BindPoolRequest(uint64_t ids, bool ids_are_int64, int64_t num_ids, uint64_t offsets, bool offsets_are_int64,
                            int64_t num_offsets, int64_t bag_ids, int64_t num_bags, uint64_t weights, uint64_t out,
                            int64_t out_stride_bytes) {
  if (num_ids < 0 || num_ids > kMaxIdsPerLaunch) {
    Throw<ArgumentError>("ids: want at most ", kMaxIdsPerLaunch, " in a call, got ", num_ids);
  }
  CheckAtLeast("bags", 0, num_bags);
  PoolRequest pool;
  pool.ids_dev = Pointer<const void>(ids);
  pool.ids_are_int64 = ids_are_int64;
  pool.num_ids = num_ids;
  pool.offsets_dev = Pointer<const void>(offsets);
  pool.offsets_are_int64 = offsets_are_int64;
  pool.num_offsets = num_offsets;
  pool.bag_ids = bag_ids;
  pool.num_bags = pool.part_bags = num_bags;
  pool.weights_dev = Pointer<const float>(weights);
  pool.out_dev = Pointer<uint8_t>(out);
  pool.out_stride_bytes = out_stride_bytes;
  return pool;
}

// What is staged, in scratch memory that the caller keeps.
std::unique_ptr<StagedRows> BindStage(PoolPlan& plan, uint64_t features, const PoolRequest& pool,
                                      const StageLayout& layout, uint64_t scratch, uint64_t stream) {
  return std::make_unique<StagedRows>(
      plan.Stage(Pointer<const uint8_t>(features), pool, layout, Pointer<uint8_t>(scratch), Stream(stream)));
}

// pieces: piece_bytes.
void BindPool(PoolPlan& plan, uint64_t features, PoolRequest pool, const StagedRows* staged, uint64_t pieces,
              uint64_t stream) {
  if (staged) {
    pool.staged[0] = *staged;
    pool.num_staged = 1;
  }
  plan.Pool(Pointer<const uint8_t>(features), pool, Pointer<uint8_t>(pieces), Stream(stream));
}

void BindStageAndPool(PoolPlan& plan, uint64_t features, const PoolRequest& pool, const StageLayout& layout,
                      uint64_t scratch, uint64_t pieces, uint64_t stream) {
  plan.StageAndPool(Pointer<const uint8_t>(features), pool, layout, Pointer<uint8_t>(scratch), Pointer<uint8_t>(pieces),
                    Stream(stream));
}

void BindPoolRows(const PoolRequest& pool, uint64_t rows, int32_t width, int type, int mode, int64_t padding_id,
                  int64_t out_column_bytes, uint64_t stream) {
  LaunchPoolRows(pool, Pointer<const uint8_t>(rows), width, CheckedType(type), CheckedMode(mode), padding_id,
                 out_column_bytes, Stream(stream));
}

void BindCountOnes(const CudaMatrix<const uint8_t>& rows, const CudaVector<int64_t>& ones, uint64_t stream) {
  const int64_t row_bytes = static_cast<int64_t>(rows.shape(1));
  CheckEqual("ones", 8 * row_bytes, Length(ones));
  LaunchCountOnes(rows.data(), Length(rows), static_cast<int32_t>(row_bytes), ones.data(), Stream(stream));
}

void BindCopyRows(uint64_t rows, const CudaVector<const int64_t>& ids,
                  const std::optional<CudaVector<const int64_t>>& positions, const CudaMatrix<uint8_t>& out,
                  int max_blocks, uint64_t stream) {
  CheckEqual("out rows", Length(ids), Length(out));
  if (positions) CheckEqual("positions", Length(ids), Length(*positions));
  LaunchCopyRows(Pointer<const uint8_t>(rows), static_cast<int32_t>(out.shape(1)), ids.data(),
                 positions ? positions->data() : nullptr, Length(ids), out.data(), max_blocks, Stream(stream));
}

void BindScatterRows(const CudaMatrix<const uint8_t>& rows, const CudaVector<const int64_t>& at,
                     const CudaMatrix<uint8_t>& out, uint64_t stream) {
  CheckEqual("at", Length(rows), Length(at));
  CheckEqual("row_bytes", static_cast<int64_t>(rows.shape(1)), static_cast<int64_t>(out.shape(1)));
  LaunchScatterRows(rows.data(), static_cast<int32_t>(rows.shape(1)), at.data(), Length(at), out.data(), Length(out),
                    Stream(stream));
}

void BindCodecs(nb::module_& m) {
  nb::class_<GpuCodec>(m, "GpuCodec", "A codec on one GPU. Whoever holds it holds its tables, too.");
  m.def("measure", &BindMeasure, nb::arg("codec"), nb::arg("rows").noconvert(), nb::arg("payload_bytes").noconvert(),
        nb::arg("stream"));
  m.def("encode_scratch_bytes", &GpuCodec::EncodeScratchBytes, nb::arg("codec"));
  m.def("encode", &BindEncode, nb::arg("codec"), nb::arg("rows").noconvert(), nb::arg("overflow_index").noconvert(),
        nb::arg("slots").noconvert(), nb::arg("slot_bytes"), nb::arg("bitmask").noconvert(),
        nb::arg("overflow").noconvert(), nb::arg("scratch").noconvert(), nb::arg("changed_row").noconvert(),
        nb::arg("stream"));
  m.def("can_encode_once", &GpuCodec::CanEncodeOnce, nb::arg("codec"), nb::arg("slot_bytes"));
  m.def("encode_once", &BindEncodeOnce, nb::arg("codec"), nb::arg("rows").noconvert(), nb::arg("slots").noconvert(),
        nb::arg("slot_bytes"), nb::arg("bitmask").noconvert(), nb::arg("overflow").noconvert(),
        nb::arg("overflow_count").noconvert(), nb::arg("stream"),
        "Encodes rows that were not measured; overflow_count: int64 [1], becomes how many do not fit their slot.");
  m.def(
      "codec", &BindCodec, nb::arg("name"), nb::arg("tables").noconvert(), nb::arg("parameters"),
      "A fitted codec (csrc/core/codec_list.h) with its form's parameters; tables: as the CPU extension writes them.");
}

void BindGathers(nb::module_& m) {
  m.attr("NUM_COUNTERS") = static_cast<int>(kNumGatherCounters);
  m.attr("ID_OUT_OF_RANGE") = static_cast<int64_t>(kIdOutOfRange);
  m.attr("DAMAGED_ROW") = static_cast<int64_t>(kDamagedRow);
  m.attr("SHOW_EVERY_IDS") = GatherReport::kShowEveryIds;
  nb::class_<PlanSegment>(m, "Segment")
      .def(
          "__init__",
          [](PlanSegment* self, uint64_t slots, int64_t slots_bytes, uint64_t bitmask, int64_t bitmask_bytes,
             uint64_t overflow, int64_t overflow_bytes, int64_t num_rows, int64_t first_place, int64_t origin,
             bool hits) {
            new (self) PlanSegment(BindSegment(slots, slots_bytes, bitmask, bitmask_bytes, overflow, overflow_bytes,
                                               num_rows, first_place, origin, hits));
          },
          nb::kw_only(), nb::arg("slots"), nb::arg("slots_bytes"), nb::arg("bitmask"), nb::arg("bitmask_bytes"),
          nb::arg("overflow"), nb::arg("overflow_bytes"), nb::arg("num_rows"), nb::arg("first_place"),
          nb::arg("origin"), nb::arg("hits"));
  nb::class_<GatherReport>(m, "GatherReport")
      .def(nb::init<double>(), nb::arg("misses_at_first"))
      .def_prop_ro("error", &GatherReport::error, "A GatherError: what is wrong with the first bad row; 0: nothing.")
      .def_prop_ro("error_id", &GatherReport::error_id, "The id of that row.")
      .def("clear_error", &GatherReport::ClearError)
      .def("miss_rate", &GatherReport::MissRate, "Of the gathers since it was asked last, as far as they have run.");
  m.def("make_gather_plan", &MakePlan, nb::kw_only(), nb::arg("codec"), nb::arg("segments"), nb::arg("num_rows"),
        nb::arg("place").noconvert().none(), nb::arg("slot_bytes"), nb::arg("lead_bytes"),
        nb::arg("counters").noconvert(), nb::arg("report"), nb::arg("touched").noconvert().none(),
        nb::arg("miss_blocks"), nb::arg("order_from_bytes"), nb::arg("order_from_misses"), nb::arg("owners"),
        nb::arg("unit_bytes") = 0, nb::arg("least_bytes") = 0);
  nb::class_<BoundPlan>(m, "GatherPlan", nb::is_weak_referenceable())
      .def_prop_ro("ordering_pays", &GatherPlan::ordering_pays)
      .def("gather", &BindGather, nb::arg("ids"), nb::arg("ids_are_int64"), nb::arg("first_id"), nb::arg("num_ids"),
           nb::arg("out"), nb::arg("out_bytes"), nb::arg("ordered").none(), nb::arg("max_blocks").none(),
           nb::arg("order_scratch"), nb::arg("order_scratch_bytes"), nb::arg("stream"),
           "ids: an address, or 0 for num_ids ids from first_id on. "
           "Returns 0, or how many bytes of order_scratch it wants; then nothing is done.")
      .def(
          "wait", [](BoundPlan& plan) { plan.Wait(true); }, nb::call_guard<nb::gil_scoped_release>(),
          "Until all gathers that were launched so far have run, those of replayed graphs among them.");
}

void BindPools(nb::module_& m) {
  nb::class_<PoolRequest>(m, "PoolRequest")
      .def(
          "__init__",
          [](PoolRequest* self, uint64_t ids, bool ids_are_int64, int64_t num_ids, uint64_t offsets,
             bool offsets_are_int64, int64_t num_offsets, int64_t bag_ids, int64_t num_bags, uint64_t weights,
             uint64_t out, int64_t out_stride_bytes) {
            new (self) PoolRequest(BindPoolRequest(ids, ids_are_int64, num_ids, offsets, offsets_are_int64, num_offsets,
                                                   bag_ids, num_bags, weights, out, out_stride_bytes));
          },
          nb::kw_only(), nb::arg("ids"), nb::arg("ids_are_int64"), nb::arg("num_ids"), nb::arg("offsets"),
          nb::arg("offsets_are_int64"), nb::arg("num_offsets"), nb::arg("bag_ids"), nb::arg("num_bags"),
          nb::arg("weights"), nb::arg("out"), nb::arg("out_stride_bytes"));
  nb::class_<StageLayout>(m, "StageLayout").def_ro("bytes", &StageLayout::bytes).def_ro("stride", &StageLayout::stride);
  nb::class_<StagedRows>(m, "StagedRows");
  nb::class_<PoolPlan>(m, "PoolPlan")
      .def_prop_ro("num_misses", &PoolPlan::num_misses, "Rows that are not in GPU memory, of all tables.")
      .def_prop_ro("features_bytes", &PoolPlan::features_bytes)
      .def(
          "write_features",
          [](const PoolPlan& plan, const Vector<uint8_t, nb::device::cpu>& out) {
            CheckEqual("out bytes", plan.features_bytes(), Length(out));
            plan.WriteFeatures(out.data());
          },
          nb::arg("out").noconvert(), "For the caller to bring to the GPU.")
      .def("piece_bytes", &PoolPlan::PieceBytes, nb::arg("num_ids"))
      .def("layout", &PoolPlan::Layout, nb::arg("most_rows"), nb::arg("parts"))
      .def("stage", &BindStage, nb::arg("features"), nb::arg("request"), nb::arg("layout"), nb::arg("scratch"),
           nb::arg("stream"))
      .def("pool", &BindPool, nb::arg("features"), nb::arg("request"), nb::arg("staged").none(), nb::arg("pieces"),
           nb::arg("stream"))
      .def("stage_and_pool", &BindStageAndPool, nb::arg("features"), nb::arg("request"), nb::arg("layout"),
           nb::arg("scratch"), nb::arg("pieces"), nb::arg("stream"));
  m.attr("MOST_STAGE_PARTS") = kMaxStageParts;
  m.def(
      "can_pool", [](BoundPlan& plan) { return PoolPlan::CanPool(plan); }, nb::arg("plan"),
      "Whether a kernel decodes and pools these rows at once.");
  m.def("make_pool_plan", &MakePoolPlan, nb::arg("device"), nb::arg("features"));
  m.def("pool_rows", &BindPoolRows, nb::arg("request"), nb::arg("rows"), nb::arg("width"), nb::arg("type"),
        nb::arg("mode"), nb::arg("padding_id"), nb::arg("out_column_bytes"), nb::arg("stream"));
}

void BindMemory(nb::module_& m) {
  m.def("count_ones", &BindCountOnes, nb::arg("rows").noconvert(), nb::arg("ones").noconvert(), nb::arg("stream"));
  m.def("copy_rows", &BindCopyRows, nb::arg("rows"), nb::arg("ids").noconvert(),
        nb::arg("positions").noconvert().none(), nb::arg("out").noconvert(), nb::arg("max_blocks"), nb::arg("stream"),
        "Gathers uncompressed rows; ids are not checked. For benchmarks.");
  m.def(
      "launch_nothing", [](uint64_t stream) { LaunchNothing(Stream(stream)); }, nb::arg("stream"),
      "Launches a kernel that does nothing. For benchmarks.");
  m.def("scatter_rows", &BindScatterRows, nb::arg("rows").noconvert(), nb::arg("at").noconvert(),
        nb::arg("out").noconvert(), nb::arg("stream"),
        "out[at[i]] = rows[i], all uint8 [n, row_bytes]. Allocates nothing.");
  // Page-locking takes seconds for gigabytes: other Python threads go on meanwhile.
  m.def(
      "register_host_memory",
      [](uint64_t address, int64_t bytes) { return RegisterHostMemory(Pointer<void>(address), bytes); },
      nb::arg("address"), nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(),
      "Page-locks and maps host memory, for all GPUs, by the current one; returns its device address.");
  m.def(
      "unregister_host_memory", [](uint64_t address) { UnregisterHostMemory(Pointer<void>(address)); },
      nb::arg("address"), nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "copy_to_gpu",
      [](uint64_t to, uint64_t from, int64_t bytes, uint64_t stream) {
        CopyToGpu(Pointer<void>(to), Pointer<const void>(from), bytes, Stream(stream));
      },
      nb::arg("to"), nb::arg("from_"), nb::arg("bytes"), nb::arg("stream"),
      "Enqueues a copy from page-locked host memory, also in a CUDA graph: torch does so from its own memory only.");
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.doc() = "CUDA backend of ibp_gnn; use it through ibp_gnn.Codec, CompressedFeatureStore and CompressedGPUCache.";
  // A codec that a traceback keeps alive at exit is no bug.
  nb::set_leak_warnings(false);
  BindErrors(m);
  // Arrays are taken as they are (noconvert): a converted copy of an output would be written and thrown away.
  m.attr("ARCHITECTURES") = IBP_CUDA_ARCHITECTURES;  // as CMake names them, separated by commas
  BindCodecs(m);
  BindGathers(m);
  BindPools(m);
  BindMemory(m);
  BindPacking(m);
}

}  // namespace ibp
