#!/usr/bin/env bash
# Tries a wheel with several versions of Python, torch, DGL and PyG, each in an environment of its own, and prints a table.
#
#   bash scripts/compat.sh WHEELS_FOLDER [PYTHON:TORCH...]     default: all below
#
# WHEELS_FOLDER holds wheels of this project, as scripts/wheels.sh builds them. In each environment there are torch, DGL
# 2.1 (for Python 3.10 to 3.12) and PyG 2.8; each is tried alone. PYTHON_3_10 and so on say which interpreter to take.
# Environments are removed afterwards: torch's take gigabytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

wheels=${1:?compat.sh: want the folder of wheels}
shift
cells=("$@")
if ((${#cells[@]} == 0)); then
  cells=(3.10:2.2.1 3.10:2.4.1 3.10:2.6.0 3.10:2.9.1 3.10:2.13.0 3.12:2.2.1 3.12:2.4.1 3.12:2.6.0 3.12:2.9.1 3.12:2.13.0
    3.13:2.6.0 3.13:2.9.1 3.13:2.13.0)
fi
build=build/compat
mkdir -p "$build"
echo "| Python | torch | alone | DGL 2.1 | PyG 2.8 |"
echo "| --- | --- | --- | --- | --- |"
for cell in "${cells[@]}"; do
  version=${cell%%:*} torch=${cell##*:}
  variable=PYTHON_${version//./_}
  python=${!variable:-python$version}
  environment=$build/$version-$torch
  rm -rf "$environment"
  "$python" -m venv "$environment"
  wheel=$(echo "$wheels"/ibp_gnn-*-cp"${version//./}"-*.whl)
  packages=("$wheel" "torch==$torch" torch-geometric==2.8.0 PyYAML psutil)
  case $torch in 2.2.*) packages+=("numpy<2") ;; esac
  libraries=(none pyg)
  if [[ $version != 3.13 ]]; then
    libraries=(none dgl pyg)
    # What `pip install 'ibp-gnn[dgl]'` takes; pandas < 3 goes with numpy < 2.
    packages+=(dgl==2.1.0 networkx packaging pandas pydantic requests scipy setuptools)
    case $torch in 2.2.*) packages+=(torchdata==0.7.1) ;; *) packages+=(torchdata==0.9.0) ;; esac
  fi
  if "$environment/bin/pip" install -q "${packages[@]}" >"$build/$version-$torch.log" 2>&1; then
    found=$(DGLBACKEND=pytorch "$environment/bin/python" -P scripts/compat_checks.py "${libraries[@]}" 2>/dev/null ||
      DGLBACKEND=pytorch "$environment/bin/python" scripts/compat_checks.py "${libraries[@]}")
  else
    found=$(tail -n 1 "$build/$version-$torch.log" | python3 -c 'import json, sys; print(json.dumps({"none": sys.stdin.read().strip()[:200]}))')
  fi
  python3 - "$version" "$torch" "$found" <<'PYTHON'
import json, sys
version, torch, found = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
print("|", " | ".join([version, torch, *(found.get(name, "-") for name in ("none", "dgl", "pyg"))]), "|", flush=True)
PYTHON
  rm -rf "$environment"
done
