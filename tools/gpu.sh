#!/usr/bin/env bash
# Runs on a machine with an NVIDIA GPU and its driver, in the folder that `just gpu` makes: the backend's
# tests on the device, what compute-sanitizer finds if it is there, how fast rows are read, and how long
# whole steps take beside dense attention.
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

# Whole steps beside dense attention: rows in the device's memory, and in the host's.
bench() { step ./vattention bench --backend cuda --threads 1 --seconds 2 "$@"; }
bench --tokens 32768,131072 --density 0.05,0.1 --json bench.json
bench --tokens 131072 --density 0.1 --offload --json bench-offload.json
bench configs/vattention-oracle.toml --tokens 32768,131072 --json bench-promise.json
