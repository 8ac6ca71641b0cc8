// A codec's parameters from keyword arguments.
#pragma once

#include <string>

#include "bind/ndarrays.h"
#include "core/codec_parameters.h"

namespace ibp {

// Numbers, bools, and arrays of uint8 or uint16 in CPU memory, which have to stay as long as the parameters.
inline CodecParameters ParametersOf(const nb::kwargs& arguments) {
  CodecParameters parameters;
  for (const auto& [key, value] : arguments) {
    const std::string name = nb::cast<const char*>(key);
    Vector<const uint8_t, nb::device::cpu> bytes;
    Vector<const uint16_t, nb::device::cpu> symbols;
    if (PyBool_Check(value.ptr())) {
      parameters.Add(name, value.ptr() == Py_True);
    } else if (PyLong_Check(value.ptr())) {
      int overflows = 0;
      const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflows);
      if (overflows) Throw<ArgumentError>(name.c_str(), ": want 64 bits, got a larger number");
      parameters.Add(name, int64_t{number});
    } else if (nb::try_cast(value, bytes, false)) {
      parameters.Add(name, CodecParameters::Array<uint8_t>{bytes.data(), Length(bytes)});
    } else if (nb::try_cast(value, symbols, false)) {
      parameters.Add(name, CodecParameters::Array<uint16_t>{symbols.data(), Length(symbols)});
    } else {
      throw nb::type_error((name + ": want an int, a bool, or contiguous uint8 or uint16 [n] in CPU memory").c_str());
    }
  }
  return parameters;
}

}  // namespace ibp
