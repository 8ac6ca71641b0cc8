#!/usr/bin/env bash
# On a machine with an NVIDIA GPU, nvcc and torch: builds the extensions in place for the Python that runs, and runs the
# tests that need a GPU. Arguments go to pytest. IBP_CUDA_ARCHITECTURES narrows the build (default: this GPU's).
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
cp "$build/_cpu$suffix" "$build/_cuda$suffix" ibp_gnn/
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

exec "$python" -m pytest -m cuda "$@"
