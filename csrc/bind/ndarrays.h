// The array types that cross from Python: contiguous bytes and integers, viewed through DLPack. No torch here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

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

// Maps FormatError to a ValueError of this module's own name; ArgumentError derives from invalid_argument, which
// nanobind already maps to ValueError.
inline void BindErrors(nb::module_& m) { nb::exception<FormatError>(m, "FormatError", PyExc_ValueError); }

}  // namespace ibp
