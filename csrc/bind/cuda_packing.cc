// Packed values on a GPU, by address, and checked by whoever calls: an array of nanobind's takes longer than a launch.
#include "bind/cuda_packing.h"

#include "core/check.h"
#include "cuda/narrow.h"
#include "cuda/packed_linear.h"

namespace ibp {
namespace {

namespace nb = nanobind;

template <typename T>
T* Pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

cudaStream_t Stream(uint64_t address) { return reinterpret_cast<cudaStream_t>(address); }

NarrowFloat CheckedFormat(int64_t format) {
  CheckNarrowFloat(format);
  return static_cast<NarrowFloat>(format);
}

ValueType CheckedType(int type) {
  if (type < 0 || type > static_cast<int>(ValueType::kBfloat16)) Throw<ArgumentError>("type: want 0 to 2, got ", type);
  return static_cast<ValueType>(type);
}

void BindNarrow(int64_t format, uint64_t values, uint64_t random, int64_t count, uint64_t codes, bool saturate,
                uint64_t stream) {
  LaunchNarrow(CheckedFormat(format), {saturate, random != 0}, Pointer<const float>(values),
               Pointer<const uint32_t>(random), count, Pointer<uint8_t>(codes), Stream(stream));
}

void BindWiden(int64_t format, uint64_t codes, int64_t count, uint64_t values, uint64_t stream) {
  LaunchWiden(CheckedFormat(format), Pointer<const uint8_t>(codes), count, Pointer<float>(values), Stream(stream));
}

void BindGemv(const PackedMatrix& w, uint64_t x, int x_type, uint64_t column_scale, uint64_t bias, uint64_t out,
              int out_type, uint64_t stream) {
  LaunchPackedGemv(w, Pointer<const void>(x), CheckedType(x_type), Pointer<const float>(column_scale),
                   Pointer<const void>(bias), Pointer<void>(out), CheckedType(out_type), Stream(stream));
}

void BindGemm(const PackedMatrix& w, uint64_t x, int x_type, int32_t x_stride, int32_t batch, uint64_t out,
              uint64_t stream) {
  if (w.format == NarrowFloat::kFloat16) Throw<ArgumentError>("format: want one of 8 bits, got float16");
  if (CheckedType(x_type) == ValueType::kFloat32) Throw<ArgumentError>("x: want values of 16 bits, got float32");
  if (batch < 0 || batch > kMaxPackedBatch) {
    Throw<ArgumentError>("batch: want at most ", kMaxPackedBatch, ", got ", batch);
  }
  if (x_stride % 16 != 0 || x % 16 != 0) Throw<ArgumentError>("x: want rows of whole 16 values, got ", x_stride);
  LaunchPackedGemm(w, Pointer<const void>(x), CheckedType(x_type), x_stride, batch, Pointer<float>(out),
                   Stream(stream));
}

}  // namespace

void BindPacking(nb::module_& m) {
  m.def("narrow", &BindNarrow, nb::arg("format"), nb::arg("values"), nb::arg("random"), nb::arg("count"),
        nb::arg("codes"), nb::arg("saturate"), nb::arg("stream"),
        "Floats to codes of a NarrowFloat (core/narrow_floats.h); random: for stochastic rounding, else 0.");
  m.def("widen", &BindWiden, nb::arg("format"), nb::arg("codes"), nb::arg("count"), nb::arg("values"),
        nb::arg("stream"), "Codes of a NarrowFloat to floats.");
  m.attr("MAX_PACKED_BATCH") = kMaxPackedBatch;
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def(
          "__init__",
          [](PackedMatrix* self, int64_t format, uint64_t words, int64_t num_rows, int32_t num_values,
             int32_t row_words, uint64_t row_scale) {
            new (self) PackedMatrix{
                CheckedFormat(format),          Pointer<const uint32_t>(words), num_rows, num_values, row_words,
                Pointer<const float>(row_scale)};
          },
          nb::kw_only(), nb::arg("format"), nb::arg("words"), nb::arg("num_rows"), nb::arg("num_values"),
          nb::arg("row_words"), nb::arg("row_scale"));
  m.def(
      "most_gemv_values", [](int64_t format) { return MostGemvValues(CheckedFormat(format)); }, nb::arg("format"),
      "Of a row, for packed_gemv on the current device.");
  m.def("packed_gemv", &BindGemv, nb::arg("w"), nb::arg("x"), nb::arg("x_type"), nb::arg("column_scale"),
        nb::arg("bias"), nb::arg("out"), nb::arg("out_type"), nb::arg("stream"), "cuda/packed_linear.h");
  m.def("packed_gemm", &BindGemm, nb::arg("w"), nb::arg("x"), nb::arg("x_type"), nb::arg("x_stride"), nb::arg("batch"),
        nb::arg("out"), nb::arg("stream"), "cuda/packed_linear.h");
}

}  // namespace ibp
