#!/usr/bin/env bash
# Runs on a machine with an NVIDIA GPU and its driver, in the folder that `just gpu` makes: the backend's
# tests on the device, what compute-sanitizer finds if it is there, and how fast rows are read.
set -euo pipefail
cd "$(dirname "$0")"

export CARGO_MANIFEST_DIR=$PWD # there are configs/ and weights/
if [ -d nvrtc ]; then export VATTENTION_NVRTC=$PWD/nvrtc; fi

step() { printf '\n== %s\n' "$*"; "$@"; }

step ./gather # fails where there is no GPU; the tests would say so and pass
step ./driver --nocapture
step ./kernels gpu
step ./cuda limits
step ./backends --skip threads --skip reports
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step compute-sanitizer --tool "$tool" --error-exitcode 1 ./kernels gpu
    step compute-sanitizer --tool "$tool" --error-exitcode 1 ./cuda limits
  done
else
  echo "no compute-sanitizer: memcheck and racecheck are left out"
fi
