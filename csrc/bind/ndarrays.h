// The array types that cross from Python: contiguous bytes and integers, viewed through DLPack. No torch here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <exception>

#include "core/check.h"

namespace ibp {

namespace nb = nanobind;

template <typename T, typename Device, typename Shape>
using Array = nb::ndarray<T, Shape, Device, nb::c_contig>;

template <typename T, typename Device>
using Vector = Array<T, Device, nb::ndim<1>>;
template <typename T, typename Device>
using Matrix = Array<T, Device, nb::ndim<2>>;

template <typename A>
int64_t Length(const A& array) {
  return static_cast<int64_t>(array.shape(0));
}

// Makes the module raise FormatError as the Python class of that name, which all extensions share. ArgumentError
// derives from invalid_argument, which nanobind already maps to ValueError.
inline void BindErrors(nb::module_& m) {
  nb::object error = nb::module_::import_("ibp_gnn.errors").attr("FormatError");
  m.attr("FormatError") = error;
  nb::register_exception_translator(
      [](const std::exception_ptr& raised, void* python_class) {
        try {
          std::rethrow_exception(raised);
        } catch (const FormatError& e) {
          PyErr_SetString(static_cast<PyObject*>(python_class), e.what());
        }
      },
      error.release().ptr());  // nanobind keeps its translators, so the class must not be freed either
}

}  // namespace ibp
