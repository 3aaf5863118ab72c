#!/usr/bin/env bash
# Installs NVRTC 13.0, NVIDIA's runtime compiler of kernels, into .nvrtc with pip (about 200 MB, no
# GPU needed), and prints the folder of its libraries. To use it:
# VATTENTION_NVRTC=$(tools/install_nvrtc.sh) cargo test --release -p vattention-cuda --test suite nvrtc::
set -euo pipefail
cd "$(dirname "$0")/.."

libraries=.nvrtc/nvidia/cu13/lib
[ -e "$libraries/libnvrtc.so.13" ] ||
  python3 -m pip install --quiet --no-deps --upgrade --target .nvrtc 'nvidia-cuda-nvrtc==13.0.*' >&2
echo "$PWD/$libraries"
