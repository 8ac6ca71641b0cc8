// Argument errors. Bindings turn ArgumentError into ValueError and FormatError into ibp_gnn.FormatError.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ibp {

struct ArgumentError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename Error, typename... Parts>
[[noreturn]] void Throw(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(message.str());
}

// `what` names the argument; the message says what was wanted and what came.
template <typename Wanted, typename Got>
void CheckEqual(const char* what, const Wanted& wanted, const Got& got) {
  if (!(wanted == got)) Throw<ArgumentError>(what, ": want ", wanted, ", got ", got);
}

template <typename Wanted, typename Got>
void CheckAtLeast(const char* what, const Wanted& wanted, const Got& got) {
  if (got < wanted) Throw<ArgumentError>(what, ": want at least ", wanted, ", got ", got);
}

}  // namespace ibp
