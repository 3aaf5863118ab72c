#!/usr/bin/env bash
# Tests the Python package as users install it: a wheel in an empty environment, away from the
# sources. The tests run once with the newest installed Python and numpy alone, and once with Python
# 3.11, torch and transformers; then types and examples are checked. The tests of `vattention.ray`
# start a cluster of two nodes on this machine. With the argument `packages`, it only installs
# the packages that the tests need.
# Packages (5 GB) are stored for later runs in $VATTENTION_PYTHON_CACHE, by default a folder in the
# user's cache. Tests whose packages cannot be installed are skipped with a message.
set -euo pipefail
cd "$(dirname "$0")/.."

root=$PWD
cache=${VATTENTION_PYTHON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vattention/python}
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

step() {
  local start=$SECONDS
  printf "\n== %s\n" "$*"
  "$@"
  echo "-- $((SECONDS - start)) s"
}

# Prints the path of the first of these Pythons that runs.
first() {
  local python
  for python in "$@"; do
    if "$python" -c '' 2>/dev/null; then command -v "$python"; return; fi
  done
}
pyenv_python() { ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python 2>/dev/null | sort -V | tail -1; }

oldest=$(first "$(pyenv_python 3.11)" python3.11)
newest=$(first "$(pyenv_python 3.14)" python3.14 "$(pyenv_python 3.13)" python3.13 "$(pyenv_python 3.12)" python3.12 "$oldest")
[ -n "$newest" ] || { echo "the tests of the Python package are skipped: no Python 3.11 or newer was found"; exit 0; }
oldest=${oldest:-$newest}

# Prints the folder of an environment with the packages of a requirements file, which is made once
# for each file and Python.
environment() { # python, requirements
  local folder
  folder=$cache/$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-$(sha256sum < "$2" | cut -c -16)
  if [ ! -e "$folder/whole" ]; then
    rm -rf "$folder" && mkdir -p "$cache"
    "$1" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet -r "$2" && touch "$folder/whole" || return
  fi
  echo "$folder"
}

# Runs Python with the wheel, in a new environment that sees the libraries of another environment.
# $limit, if set, is a time limit in seconds.
check() { # environment with libraries, arguments of Python
  local libraries=$1 fresh
  shift
  fresh=$work/$(basename "$libraries")
  "$libraries/bin/python" -m venv --without-pip "$fresh"
  "$libraries/bin/python" -m pip --python "$fresh" install --quiet --no-deps "$work"/wheels/*.whl
  "$libraries/bin/python" -c 'import site; print(site.getsitepackages()[0])' > "$("$fresh/bin/python" -c 'import site; print(site.getsitepackages()[0])')/libraries.pth"
  (cd "$work" && ${limit:+timeout "$limit"} "$fresh/bin/python" "$@")
}

if ! small=$(environment "$newest" python/requirements/small.txt); then
  echo "the tests of the Python package are skipped: numpy, pytest and maturin cannot be installed"
  exit 0
fi
install_packages() {
  for requirements in large ray; do
    environment "$oldest" python/requirements/$requirements.txt > /dev/null || true
  done
}
if [ "${1-}" = packages ]; then install_packages; exit; fi
# The packages are installed while the wheel is built.
install_packages > /dev/null 2>&1 &
step "$small/bin/maturin" build --release --locked --quiet --manifest-path python/Cargo.toml --interpreter "$newest" --out "$work/wheels"
wait

# Most tests use one core, so two series of them run at once.
test_small_and_ray() {
  step check "$small" -m pytest -q "$root/python/tests"
  if clusters=$(environment "$oldest" python/requirements/ray.txt); then
    VATTENTION_REQUIRE_RAY=1 limit=3600 step check "$clusters" -m pytest -q "$root/python/tests/test_ray.py"
  else
    echo "the tests with Ray are skipped: Ray cannot be installed"
  fi
}
test_small_and_ray > "$work/small_and_ray.log" 2>&1 &
series=$!

if large=$(environment "$oldest" python/requirements/large.txt); then
  export VATTENTION_REQUIRE_TRANSFORMERS=1
  step check "$large" -m pytest -q "$root/python/tests"
  # The interfaces of vLLM, which is not installed.
  export MYPYPATH=$root/python/tests/stubs
  step check "$large" -m mypy --strict -p vattention
  step check "$large" -m mypy.stubtest vattention._vattention
  PYTHONPATH=$MYPYPATH step check "$large" -m pyright --pythonpath "$work/$(basename "$large")/bin/python" "$root/python/vattention"
  for example in "$root"/python/examples/*.py; do
    step check "$large" "$example"
  done
else
  echo "the tests with transformers, the types and the examples are skipped: torch and transformers cannot be installed"
fi

status=0
wait "$series" || status=$?
cat "$work/small_and_ray.log"
exit "$status"
