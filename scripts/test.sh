#!/usr/bin/env bash
# Everything that must pass before a change is good: builds and installs the package, lints it, checks its types and runs
# its tests. Arguments go to pytest. Tests marked `cuda` skip where there is no GPU; the CUDA extension is compiled all
# the same, and a failure to compile fails this script. See _env.sh for the variables.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

if have_nvcc; then
  export IBP_CUDA=${IBP_CUDA:-ON}
  # One architecture without and one with what Hopper brought; all of them would take minutes.
  export IBP_CUDA_ARCHITECTURES=${IBP_CUDA_ARCHITECTURES:-80;90}
fi
prepare_env test
# Threads that wait do not spin: tests start processes that want the same cores (see train_sage.py).
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

cd "$repository"
echo "== ruff"
"$venv/bin/ruff" check .
echo "== mypy"
"$venv/bin/mypy"
echo "== pytest"
# `pytest`, not `python -m pytest`: it does not put this folder on sys.path, where ibp_gnn/ would shadow the installed
# package, which is the one to test. (pytest adds only the folders of the test files, and they must have no __init__.py.)
exec "$venv/bin/pytest" "$@"
