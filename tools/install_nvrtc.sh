#!/usr/bin/env bash
# Installs NVIDIA's compiler of kernels, NVRTC 13.0, into .nvrtc with pip: some 200 MB, no GPU needed.
# Then: VATTENTION_NVRTC=$(tools/install_nvrtc.sh) cargo test --release -p vattention-cuda --test suite nvrtc::
set -euo pipefail
cd "$(dirname "$0")/.."

libraries=.nvrtc/nvidia/cu13/lib
[ -e "$libraries/libnvrtc.so.13" ] ||
  python3 -m pip install --quiet --no-deps --upgrade --target .nvrtc 'nvidia-cuda-nvrtc==13.0.*' >&2
echo "$PWD/$libraries"
