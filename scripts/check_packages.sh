#!/usr/bin/env bash
# Checks the packages that a user gets, in a temporary folder. Needs git, a network and 5 GB for each torch with CUDA; takes
# minutes.
#
#   for each Python   `pip install .` in a new environment without CUDA: the installed files, a store, the command
#   the last Python   `python -m build`: the files in the sdist, the wheel that is built from it, what it links; then
#                     the same checks with this wheel installed. With nvcc it has the CUDA extension.
#
# Arguments: the Pythons (python3.10 python3.11 python3.12). See _env.sh for IBP_TORCH, IBP_CUDA and
# IBP_CUDA_ARCHITECTURES (80).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

if (($# == 0)); then set -- python3.10 python3.11 python3.12; fi
for python; do
  check_version "$(python_version "$python")" "$python"
done
cuda=$(parts_to_build)
cuda=${cuda%% *}
export IBP_CUDA_ARCHITECTURES=${IBP_CUDA_ARCHITECTURES:-80}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/elsewhere"

# in_elsewhere COMMAND...: runs it in a folder without sources.
in_elsewhere() {
  (cd "$work/elsewhere" && "$@")
}

# What git tracks or would track in LICENSE, csrc and so on: paths relative to the repository, sorted.
files_in() {
  git -C "$repository" ls-files --cached --others --exclude-standard -- "$@" | LC_ALL=C sort
}

# want_files WHAT WANTED GOT: fails unless both lists of files are equal.
want_files() {
  diff --label "wanted in $1" --label "found in $1" -u0 <(LC_ALL=C sort <<<"$2") <(LC_ALL=C sort <<<"$3") ||
    fail "$1: want the files that are marked -, got those that are marked +"
}

# check_installed WHAT CUDA: the package that is installed in $venv. CUDA: ON or OFF.
check_installed() {
  local what=$1 cuda=$2 suffix wanted
  suffix=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  wanted=$(files_in ibp_gnn)$'\n'ibp_gnn/_csrc.sha256$'\n'ibp_gnn/_cpu$suffix
  if [[ $cuda == ON ]]; then wanted+=$'\n'ibp_gnn/_cuda$suffix; fi
  want_files "$what" "$wanted" "$(in_elsewhere "$venv/bin/python" "$work/installed_files.py")"
  in_elsewhere "$venv/bin/python" "$work/use.py" "$cuda" "$repository/csrc" || fail "$what does not work"
  run_command 0 "$what" --help
  run_command 1 "$what" doctor # warns where there is no GPU; 2: errors
}

# run_command MOST WHAT ARGUMENTS...: fails if `ibp-gnn ARGUMENTS` exits with a status above MOST.
run_command() {
  local most=$1 what=$2 status=0
  shift 2
  in_elsewhere "$venv/bin/ibp-gnn" "$@" >"$work/log" 2>&1 || status=$?
  if ((status > most)); then
    cat "$work/log"
    fail "$what: ibp-gnn $*: want an exit status of at most $most, got $status"
  fi
}

# Without what Python compiled, the metadata and the command.
cat >"$work/installed_files.py" <<'END'
from importlib.metadata import files

for path in files("ibp-gnn"):
    if path.suffix != ".pyc" and not path.parts[0].endswith(".dist-info") and path.parts[-2:] != ("bin", "ibp-gnn"):
        print(path)
END

cat >"$work/use.py" <<'END'
import sys
from pathlib import Path

import torch

import ibp_gnn
from ibp_gnn import _extension, _native
from ibp_gnn.testing import assert_bitwise_equal

built = "ON" if _native.cuda_is_built() else "OFF"
assert built == sys.argv[1], f"CUDA extension: want {sys.argv[1]}, got {built}"
built_from = Path(ibp_gnn.__file__).with_name("_csrc.sha256").read_text()
assert built_from == _extension.source_list(Path(sys.argv[2])), "want the list of these sources, got another one"
noise = torch.randint(-(2**31), 2**31, (1000, 40)).to(torch.int32).view(torch.float32)  # NaNs among them
dense = torch.randn(1000, 40)
ids = torch.randint(1000, (5000,))
for rows in (noise, dense, dense.to(torch.bfloat16), dense.relu()):
    store = ibp_gnn.CompressedFeatureStore.build(rows, progress=False)
    assert_bitwise_equal(store.gather(ids), rows[ids])
END

# check_linked WHEEL: auditwheel names a manylinux tag only for a wheel that needs no libraries but the system's, such as
# C's and C++'s. So this one links neither torch nor CUDA, and serves all versions of torch.
check_linked() {
  "$work/tools/bin/auditwheel" show "$1"
  "$work/tools/bin/auditwheel" show --json "$1" >"$work/audit.json"
  "$work/tools/bin/python" - "$work/audit.json" <<'END' || fail "$1 links libraries that not every Linux has"
import json
import sys

audit = json.load(open(sys.argv[1]))
tag, libraries = audit["overall_tag"], audit["external_libs"]
assert tag.startswith("manylinux_") and not libraries, f"want manylinux and no libraries, got {tag}, {libraries}"
END
}

# The sources, with what a developer may have left in them.
copy=$work/source
mkdir "$copy"
(cd "$repository" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T -) | tar -x -C "$copy"
mkdir -p "$copy/ibp_gnn/__pycache__" "$copy/notes"
touch "$copy/ibp_gnn/_cpu.so" "$copy/ibp_gnn/_csrc.sha256" "$copy/ibp_gnn/__pycache__/a.pyc" "$copy/notes/a.py"

for python; do
  version=$(python_version "$python")
  echo "== Python $version: pip install ."
  venv=$work/$version
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "${IBP_TORCH:-torch==2.13.0}"
  (cd "$copy" && IBP_CUDA=OFF "$venv/bin/python" -m pip install --quiet .)
  check_installed "the package installed by Python $version" OFF
done

echo "== Python $version: python -m build (CUDA extension: $cuda)"
"$python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet auditwheel build
IBP_CUDA=$cuda "$work/tools/bin/python" -m build --outdir "$work/dist" "$copy" >"$work/log" 2>&1 || {
  tail -n 60 "$work/log"
  fail "python -m build fails"
}
sdist=$(echo "$work"/dist/*.tar.gz)
wheel=$(echo "$work"/dist/*.whl)
want_files "the sdist" "$(files_in LICENSE README.md csrc ibp_gnn pyproject.toml)"$'\n'PKG-INFO \
  "$(tar -tzf "$sdist" | cut -d/ -f2-)"
check_linked "$wheel"
"$venv/bin/python" -m pip install --quiet --force-reinstall --no-deps "$wheel"
check_installed "the wheel that is built from the sdist" "$cuda"
du -b "$sdist" "$wheel" | sed "s|$work/dist/||"
echo "all packages are well"
