// What the opaque handles of ibp.h are.
#pragma once

#include <memory>

#include "core/check.h"
#include "cpu/fit.h"
#include "cpu/rows.h"
#include "include/ibp.h"

struct ibp_codec {
  ibp::CodecDescription description;
  std::unique_ptr<const ibp::RowCodec> codec;
};

struct ibp_rows {
  const ibp::RowCodec* codec;
  ibp::SlotRows rows;
};

namespace ibp {

inline void CheckNotNull(const char* what, const void* pointer) {
  if (pointer == nullptr) Throw<ArgumentError>(what, ": want an address, got NULL");
}

}  // namespace ibp
