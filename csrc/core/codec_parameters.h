// The parameters of a fitted codec, by name, as a caller that knows no codec passes them on.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/check.h"

namespace ibp {

// Numbers, flags, and arrays of uint8 or uint16 that somebody else keeps. The methods throw ArgumentError that names
// what is not there or is of another kind.
class CodecParameters {
 public:
  template <typename T>
  struct Array {
    const T* data = nullptr;
    int64_t length = 0;
  };

  void Add(const std::string& name, int64_t number) { numbers_[name] = number; }
  void Add(const std::string& name, bool flag) { flags_[name] = flag; }
  void Add(const std::string& name, Array<uint8_t> array) { bytes_[name] = array; }
  void Add(const std::string& name, Array<uint16_t> array) { symbols_[name] = array; }

  int64_t Number(const char* name) const { return Get(numbers_, name, "a number"); }
  int32_t Number32(const char* name) const {
    const int64_t number = Number(name);
    if (number < INT32_MIN || number > INT32_MAX) Throw<ArgumentError>(name, ": want 32 bits, got ", number);
    return static_cast<int32_t>(number);
  }
  bool Flag(const char* name) const { return Get(flags_, name, "a bool"); }
  Array<uint8_t> Bytes(const char* name) const { return Get(bytes_, name, "uint8 [n]"); }
  Array<uint16_t> Symbols(const char* name) const { return Get(symbols_, name, "uint16 [n]"); }

 private:
  template <typename Value>
  Value Get(const std::map<std::string, Value>& values, const char* name, const char* wanted) const {
    const auto found = values.find(name);
    if (found != values.end()) return found->second;
    const bool other = numbers_.count(name) || flags_.count(name) || bytes_.count(name) || symbols_.count(name);
    Throw<ArgumentError>(name, ": want ", wanted, other ? ", got something else" : ", got none");
  }

  std::map<std::string, int64_t> numbers_;
  std::map<std::string, bool> flags_;
  std::map<std::string, Array<uint8_t>> bytes_;
  std::map<std::string, Array<uint16_t>> symbols_;
};

}  // namespace ibp
