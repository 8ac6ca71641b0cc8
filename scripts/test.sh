#!/usr/bin/env bash
# Everything that must pass before a change is good: builds the package once, installs it in three environments, lints it,
# checks its types and runs the tests.
#
#   .venv            current torch, DGL: all tests but those that need
#   .venv-graphbolt  torch 2.2.1, DGL with GraphBolt's native library
#   .venv-pyg        current torch, PyG, no DGL
#
# Arguments go to pytest, which then runs in .venv alone. IBP_TEST_ENVS chooses others, e.g. "graphbolt pyg" ("main" is
# .venv); arguments take the place of the test files that each runs by default. Tests marked `cuda` skip where there is
# no GPU; the CUDA extension is compiled all the same, and a failure to compile fails this script. IBP_TEST_EXHAUSTIVE=1
# runs all combinations of dtypes, forms and widths, not a part of them (tests/matrices.py). See _env.sh for the other
# variables.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

if have_nvcc; then
  export IBP_CUDA=${IBP_CUDA:-ON}
  # The oldest one. No code depends on the architecture, and each takes minutes.
  export IBP_CUDA_ARCHITECTURES=${IBP_CUDA_ARCHITECTURES:-80}
fi
# Threads that wait do not spin: tests start processes that want the same cores (see train_sage.py).
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# The package to test is the installed one: this folder's ibp_gnn/ must not come first in `python -c` of a test
# (Python 3.11 and later know this variable).
export PYTHONSAFEPATH=1
cd "$repository"

# `pytest`, not `python -m pytest`, for the same reason. (pytest itself adds only the folders of the test files, and they
# must have no __init__.py.)
run_pytest() {
  echo "== pytest in $(basename "$venv")"
  "$venv/bin/pytest" "$@"
}

# Joined by &&: bash does not stop at a failing command in a function whose status is asked for.
test_main() {
  if $leave_some; then set -- "${left[@]/#/--ignore=}"; fi
  echo "== sanitizers" && PATH="$venv/bin:$PATH" bash scripts/sanitize.sh &&
    PATH="$venv/bin:$PATH" PYTHON="$venv/bin/python" bash scripts/fuzz.sh 0.15 &&
    echo "== format" && PATH="$venv/bin:$PATH" bash scripts/check_format.sh &&
    echo "== ruff" && "$venv/bin/ruff" check . && echo "== mypy" && "$venv/bin/mypy" && run_pytest "$@"
}

# In these two, what the environment is for must be there, or its tests would be skipped and nobody would see it. Of the
# files that main runs as well, only what is another way there: other libraries, or another torch.
test_graphbolt() {
  prepare_env .venv-graphbolt graphbolt,test
  "$venv/bin/python" -W ignore -c 'from ibp_gnn import graphbolt; graphbolt.require_native()'
  if (($# == 0)); then
    set -- tests/integrations/test_{graphbolt*,readme,dgl_compat}.py tests/training/test_train_script.py \
      tests/codec/test_compressed_rows.py tests/command/test_doctor.py tests/datasets/test_ogb*.py \
      tests/test_docstrings.py \
      -k "(not train_script or graphbolt) and (not test_doctor or this_machine or datapipes or without_dgl)"
  fi
  run_pytest "$@"
}

test_pyg() {
  prepare_env .venv-pyg pyg,test
  "$venv/bin/python" -c 'import ibp_gnn.pyg, sys; sys.exit("dgl" in sys.modules)'
  if (($# == 0)); then
    set -- tests/integrations/test_{pyg*,readme,examples,refused_stores}.py tests/training/test_train_script.py \
      tests/command/test_doctor.py tests/test_torch_defaults.py tests/test_docstrings.py tests/test_renamed.py \
      tests/test_ibp_gnn.py -k "(not test_doctor or this_machine) and (not test_torch_defaults or pyg)"
  fi
  run_pytest "$@"
}

default=main
if (($# == 0)); then default="main graphbolt pyg"; fi
chosen=" ${IBP_TEST_ENVS:-$default} "
for environment in $chosen; do
  case $environment in
    main | graphbolt | pyg) ;;
    *) fail "IBP_TEST_ENVS: want main, graphbolt or pyg, got '$environment'" ;;
  esac
done

# The other two are made and run one after the other beside main, from the start; what they print comes when main is
# done. They are done long before, so where all run all, a part of main's tests follows them.
left=(tests/training tests/integrations)
leave_some=false
if [[ $# == 0 && $chosen == " $default " ]]; then leave_some=true; fi
others() {
  if [[ $chosen == *" graphbolt "* ]]; then test_graphbolt "$@"; fi
  if [[ $chosen == *" pyg "* ]]; then test_pyg "$@"; fi
  if $leave_some; then
    prepare_env .venv dev
    run_pytest "${left[@]}"
  fi
}

if [[ $chosen != *" main "* ]]; then
  others "$@"
  exit
fi
make_venv .venv # before anything else is made: the Python may be refused
mkdir -p build
log=$repository/build/other_environments.log
set -m # a process group of its own, to be ended as a whole
(others "$@") >"$log" 2>&1 &
other=$!
set +m
trap 'kill -- -"$other" 2>/dev/null || true' EXIT
prepare_env .venv dev
failed=0
test_main "$@" || failed=1
wait "$other" || failed=1
trap - EXIT
cat "$log"
exit "$failed"
