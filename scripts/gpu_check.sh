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

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# What is started here waits for the GPU or the CPU in turns, so it runs side by side, and beside all tests.
logs=build/gpu_check
mkdir -p "$logs"
declare -A running
start() {
  local name=$1
  shift
  ("$@") >"$logs/$name.log" 2>&1 &
  running[$name]=$!
}

# Lifetimes again with each of torch's other allocators: freed memory is used again in other ways.
conf=PYTORCH_CUDA_ALLOC_CONF
if "$python" -c 'import torch, sys; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9))'; then
  conf=PYTORCH_ALLOC_CONF
fi
lifetimes=("$python" -m pytest -q -rf -p no:cacheprovider tests/gpu/test_lifetimes.py)
start no_caching env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "${lifetimes[@]}"
start malloc_async env "$conf=backend:cudaMallocAsync" "${lifetimes[@]}"
start expandable_segments env "$conf=expandable_segments:True" "${lifetimes[@]}"

# Gathers, encoding and updates under memcheck, without torch's caching allocator, which would hide small overruns; and
# under racecheck, for hazards in shared memory.
sanitize() {
  local tool=$1
  shift
  compute-sanitizer --tool "$tool" --error-exitcode 1 --print-limit 5 "$python" -m pytest -q -rf -m cuda \
    -p no:cacheprovider tests/store/test_feature_store.py tests/codec/test_encode_once.py tests/codec/test_pool_gpu.py \
    tests/gpu "$@"
}
if command -v compute-sanitizer >/dev/null; then
  some="widths_with_overflow or given_ids or order_of_fetching or (any_hint and inplace and (128 or 1500) and float32)"
  more="moves_only or damaged or out_of_range_give_zeros or change_while or (in_flight and prefix and drop)"
  more+=" or pool_gpu and (several_tables or random_bytes or make_no_bags or (bits_of_the_cpu and (16 or 100)))"
  more+=" or (random_damage and 300 and float32) or (random_damage and 128 and bfloat16 and inplace)"
  more+=" or (payloads_are_those and 129)"
  start memcheck env PYTORCH_NO_CUDA_MEMORY_CACHING=1 bash -c "$(declare -f sanitize); python=$python; sanitize memcheck \
    -k '$some or $more'"
  # By far the slowest: in parts.
  parts=("widths_with_overflow and ibp" "widths_with_overflow and dict" "given_ids or order_of_fetching"
    "any_hint and inplace and 128 and float32" "pool_gpu and bits_of_the_cpu and staged and (64 or 200)" "any_hint and inplace and 1500 and float32")
  for part in "${!parts[@]}"; do
    start "racecheck_$part" bash -c "$(declare -f sanitize); python=$python; sanitize racecheck -k '${parts[part]}'"
  done
fi

# All tests, not those of the GPU alone: here the CPU code is compiled by another compiler and runs beside CUDA. Where
# pytest-xdist is installed, in several processes.
processes=()
if "$python" -c 'import xdist' 2>/dev/null; then processes=(-n "${IBP_TEST_PROCESSES:-14}"); fi
failed=0
"$python" -m pytest -q -rf -p no:cacheprovider "${processes[@]}" "$@" || failed=1

for name in "${!running[@]}"; do
  if wait "${running[$name]}"; then
    echo "== $name: $(tail -n 1 "$logs/$name.log")"
  else
    failed=1
    echo "== $name failed"
    tail -n 40 "$logs/$name.log"
  fi
done
exit "$failed"
