// Argument errors. Bindings turn ArgumentError into ValueError and FormatError into ibp_gnn.FormatError.
//
// Messages are put together without streams. A stream brings locales with it, whose state the C++ library shares within
// a process, and an extension that has its own copy of that library must not share anything.
#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>

namespace ibp {

struct ArgumentError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void AppendPart(std::string& message, const char* text) { message += text; }

template <typename Integer, typename = std::enable_if_t<std::is_integral_v<Integer>>>
void AppendPart(std::string& message, Integer number) {
  static_assert(!std::is_same_v<Integer, bool> && !std::is_same_v<Integer, char>, "want a number");
  message += std::to_string(number);
}

// parts: text and integers.
template <typename... Parts>
std::string Message(const Parts&... parts) {
  std::string message;
  (AppendPart(message, parts), ...);
  return message;
}

template <typename Error, typename... Parts>
[[noreturn]] void Throw(const Parts&... parts) {
  throw Error(Message(parts...));
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
