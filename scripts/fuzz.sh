#!/usr/bin/env bash
# Fuzzes what reads bytes that may come from anyone, for MINUTES each (default 1, fractions allowed):
#
#   decode, encode, saved_codec   the CPU core with AddressSanitizer and UndefinedBehaviorSanitizer (csrc/fuzz)
#   oracle                        decoders and encoders against the NumPy oracle (tests/fuzz)
#   store_file                    the reader of store files, and rows of damaged ones (tests/fuzz)
#
#   bash scripts/fuzz.sh MINUTES [TARGET...]
#
# Inputs start from tests/fuzz/corpus; what reaches new code is kept in build/fuzz/corpus, for the next time. With clang
# (CXX=clang++) the first three use libFuzzer, else a simpler driver of ours. The other two take atheris, which the extra
# `dev` has. An input that fails is left in build/fuzz/finds, and makes the exit status 1: mend it, and add it to
# tests/fuzz/corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

minutes=${1:-1}
if [[ ! $minutes =~ ^[0-9]*\.?[0-9]+$ ]]; then
  echo "fuzz.sh: want MINUTES, a number, got '$minutes'" >&2
  exit 2
fi
seconds=$(awk "BEGIN { printf \"%d\", $minutes * 60 }")
shift || true
native=(decode encode saved_codec)
targets=("$@")
if (($# == 0)); then targets=("${native[@]}" oracle store_file); fi
python=${PYTHON:-python3}

build=build/fuzz
mkdir -p "$build/finds"
is_native() { [[ " ${native[*]} " == *" $1 "* ]]; }

made=false
make_native() {
  if $made; then return; fi
  made=true
  {
    cmake -S csrc -B "$build" -DIBP_FUZZ=ON && cmake --build "$build" --parallel 2
  } >"$build.log" 2>&1 || { tail -n 60 "$build.log"; exit 1; }
}

failed=0
for target in "${targets[@]}"; do
  corpus=tests/fuzz/corpus/$target
  if [[ ! -d $corpus ]]; then
    echo "fuzz.sh: want targets of $(cd tests/fuzz/corpus && echo *), got '$target'" >&2
    exit 2
  fi
  options=(-max_total_time="$seconds" -artifact_prefix="$build/finds/$target-")
  log=$build/$target.log
  if is_native "$target"; then
    make_native
    run=("$build/fuzz_$target")
    if grep -q "CMAKE_CXX_COMPILER_ID.*Clang" "$build"/CMakeFiles/*/CMakeCXXCompiler.cmake; then
      options+=(-max_len=4096 -len_control=0 -print_final_stats=1)
      mkdir -p "$build/corpus/$target"
      options+=("$build/corpus/$target")
    fi
  else
    "$python" -c 'import atheris' 2>/dev/null || { echo "fuzz.sh: want atheris: pip install '.[dev]'" >&2; exit 2; }
    run=("$python" -W ignore tests/fuzz/run_target.py "fuzz_$target")
    mkdir -p "$build/corpus/$target"
    options+=(-max_len=3000 -len_control=0 -rss_limit_mb=8192 "$build/corpus/$target")
    if [[ -f tests/fuzz/$target.dict ]]; then options+=(-dict="tests/fuzz/$target.dict"); fi
  fi
  echo "== fuzz $target: $seconds s"
  if UBSAN_OPTIONS=print_stacktrace=1 "${run[@]}" "${options[@]}" "$corpus" >"$log" 2>&1; then
    grep -E '^Done|^seed' "$log"
  else
    failed=1
    tail -n 40 "$log"
  fi
done
exit "$failed"
