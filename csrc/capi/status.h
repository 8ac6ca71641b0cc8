// How exceptions become status codes.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>

#include "include/ibp.h"

namespace ibp {

// Of this thread, for ibp_error_message; cut to its buffer. Returns the status.
ibp_status Fail(ibp_status status, const char* message) noexcept;
// The same of the exception that is being handled, if it is one of core/check.h or of the C++ library.
ibp_status FailOfException() noexcept;

template <typename Call>
ibp_status Guarded(const Call& call) noexcept {
  try {
    return call();
  } catch (...) {
    return FailOfException();
  }
}

}  // namespace ibp
