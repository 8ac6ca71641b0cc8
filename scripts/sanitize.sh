#!/usr/bin/env bash
# Builds the CPU core and its test program (csrc/test/) with AddressSanitizer and UndefinedBehaviorSanitizer, and runs it.
# It needs CMake and a C++ compiler, but no Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/sanitize
mkdir -p "$build"
{
  cmake -S csrc -B "$build" -DIBP_SANITIZE=ON && cmake --build "$build" --parallel 2
} >"$build.log" 2>&1 || { tail -n 60 "$build.log"; exit 1; }
UBSAN_OPTIONS=print_stacktrace=1 "$build/cpu_test"
