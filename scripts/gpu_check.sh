#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, nvcc and torch: builds the extensions in place for the Python that runs, and runs all
# tests; then those of lifetimes with each of torch's allocators, and those of gathers under compute-sanitizer. Arguments
# go to the first pytest.
# IBP_CUDA_ARCHITECTURES narrows the build (default: this GPU's).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if [[ -z "${IBP_CUDA_ARCHITECTURES:-}" ]]; then
  IBP_CUDA_ARCHITECTURES=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability())')
fi
build=build/in_place
mkdir -p "$build"
cmake -S csrc -B "$build" -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v "$python")" -DIBP_CUDA=ON \
  -DIBP_CUDA_ARCHITECTURES="$IBP_CUDA_ARCHITECTURES" >"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" --parallel >>"$build.log" 2>&1 || { tail -n 60 "$build.log"; exit 1; }
suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
for module in _cpu _cuda; do  # not over a file that a running process has loaded
  cp "$build/$module$suffix" "ibp_gnn/.$module.new" && mv "ibp_gnn/.$module.new" "ibp_gnn/$module$suffix"
done
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

# All tests, not those of the GPU alone: here the CPU code is compiled by another compiler and runs beside CUDA. One
# process a few cores, where pytest-xdist is installed.
processes=()
if "$python" -c 'import xdist' 2>/dev/null; then processes=(-n "${IBP_TEST_PROCESSES:-12}"); fi
"$python" -m pytest -q -p no:cacheprovider "${processes[@]}" "$@"

# Lifetimes again with each of torch's other allocators: freed memory is used again in other ways.
conf=PYTORCH_CUDA_ALLOC_CONF
if "$python" -c 'import torch, sys; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9))'; then
  conf=PYTORCH_ALLOC_CONF
fi
for allocator in PYTORCH_NO_CUDA_MEMORY_CACHING=1 $conf=backend:cudaMallocAsync $conf=expandable_segments:True; do
  echo "== tests/gpu with $allocator"
  env "$allocator" "$python" -m pytest -q -p no:cacheprovider tests/gpu/test_lifetimes.py
done

# The gathers again under memcheck, without torch's caching allocator, which would hide small overruns; then under
# racecheck, for hazards in shared memory.
if command -v compute-sanitizer >/dev/null; then
  echo "== memcheck"
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 --print-limit 5 \
    "$python" -m pytest -q -m cuda -p no:cacheprovider tests/test_feature_store.py tests/test_gpu_cache.py tests/gpu \
    -k "widths_with_overflow or moves_only or damaged or out_of_range_give_zeros or given_ids or order_of_fetching or
      random_damage and inplace and 300 or any_hint and inplace and 300 or change_while or (in_flight and ibp)"
  echo "== racecheck"
  compute-sanitizer --tool racecheck --error-exitcode 1 --print-limit 5 \
    "$python" -m pytest -q -m cuda -p no:cacheprovider tests/test_feature_store.py tests/test_gpu_cache.py tests/gpu \
    -k "widths_with_overflow or given_ids or order_of_fetching or any_hint and inplace and 300"
fi
