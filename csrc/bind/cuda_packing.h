#pragma once

#include <nanobind/nanobind.h>

namespace ibp {

// What ibp_gnn.packing calls of the CUDA extension.
void BindPacking(nanobind::module_& m);

}  // namespace ibp
