# Sourced by quickstart.sh and test.sh: one virtual environment, .venv, with torch and this project in it.
#
#   PYTHON                  what makes .venv (python3; 3.10 or later)
#   IBP_TORCH               the torch to install when .venv has none (torch==2.13.0)
#   IBP_CUDA                AUTO, ON or OFF: build the CUDA extension
#   IBP_CUDA_ARCHITECTURES  GPU architectures to build it for, e.g. "80;90"
#
# The install is a plain one, not editable: what runs and what is tested is what a user gets from pip, native modules
# and data files included. It is repeated only after a change in the sources or in what was asked for.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$repository/.venv
# Would put other packages, the source tree for instance, in front of the installed ones.
unset PYTHONPATH

fail() {
  echo "error: $*" >&2
  exit 1
}

have_nvcc() {
  command -v nvcc >/dev/null || [[ -n "${CUDACXX:-}" ]]
}

# prepare_env EXTRA: train, or test, which holds train's packages as well.
prepare_env() {
  local extra=$1
  make_venv
  if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "installing ${IBP_TORCH:-torch==2.13.0} in .venv"
    "$venv/bin/python" -m pip install --quiet "${IBP_TORCH:-torch==2.13.0}"
  fi

  # AUTO is decided here, so that the stamp says what was built.
  local cuda=${IBP_CUDA:-AUTO}
  if [[ $cuda == AUTO ]]; then
    cuda=OFF
    if have_nvcc; then cuda=ON; fi
  fi
  local stamp=$venv/ibp_gnn.stamp sources parts=$cuda
  sources=$(sources_hash)
  [[ $cuda == OFF ]] || parts="$cuda ${IBP_CUDA_ARCHITECTURES:-default}"
  if is_installed "$stamp" "$sources" "$parts" "$extra"; then
    return
  fi
  echo "building and installing ibp-gnn[$extra] in .venv (CUDA extension: $cuda)"
  rm -f "$stamp"
  (cd "$repository" && IBP_CUDA=$cuda "$venv/bin/python" -m pip install --quiet ".[$extra]")
  printf '%s\n' "$sources" "$parts" "$extra" >"$stamp"
}

make_venv() {
  if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    return
  fi
  local python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "want Python 3.10 or later, got $("$python" --version 2>&1); set PYTHON to another one"
  echo "making .venv with $("$python" --version 2>&1)"
  # --clear: half of one may be there, from a run that was stopped.
  "$python" -m venv --clear "$venv" || fail "$python cannot make a virtual environment (on Debian: apt install python3-venv)"
}

# Whether the install that the stamp describes serves: the same sources, and at least what is asked for.
is_installed() {
  local stamp=$1 sources=$2 parts=$3 extra=$4 lines
  [[ -f $stamp ]] || return 1
  mapfile -t lines <"$stamp"
  [[ ${lines[0]:-} == "$sources" ]] &&
    [[ ${lines[1]:-} == "$parts" || $parts == OFF ]] &&
    [[ ${lines[2]:-} == "$extra" || ${lines[2]:-} == test ]]
}

# One hash of all that goes into the package; what a build in place left among the sources is not part of it.
sources_hash() {
  (
    cd "$repository"
    find pyproject.toml README.md LICENSE csrc ibp_gnn -type f ! -name '*.so' ! -name '*.pyc' -print0 |
      LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
  )
}
