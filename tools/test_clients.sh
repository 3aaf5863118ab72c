#!/usr/bin/env bash
# Tests the server with the clients `openai`, `lm-eval` and `langchain-openai`.
# Packages (0.7 GB) are stored for later runs in $VATTENTION_CLIENTS_CACHE, by default a folder in
# the user's cache. The tests are skipped with a message if the packages cannot be installed.
set -euo pipefail
cd "$(dirname "$0")"

python=${PYTHON:-python3}
cache=${VATTENTION_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vattention/clients}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
folder=$cache/$version-$(sha256sum < serving/requirements.txt | cut -c -16)
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

if [ ! -e "$folder/whole" ]; then
  rm -rf "$folder" && mkdir -p "$cache"
  if ! { "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet -r serving/requirements.txt; }; then
    echo "the tests with real clients are skipped: openai, lm-eval and langchain-openai cannot be installed"
    exit 0
  fi
  touch "$folder/whole"
fi
exec "$folder/bin/python" -m unittest test_clients test_lm_eval "$@"
