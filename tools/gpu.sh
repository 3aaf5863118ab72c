#!/usr/bin/env bash
# Runs on a machine with an NVIDIA GPU and its driver, in the folder that `just gpu` makes: the backend's
# tests on the device, what compute-sanitizer finds if it is there, how fast rows are read and selected,
# beside other libraries where Python has PyTorch, and how long whole steps take beside dense attention.
set -euo pipefail
cd "$(dirname "$0")"

export CARGO_MANIFEST_DIR=$PWD # there are configs/ and weights/
if [ -d nvrtc ]; then export VATTENTION_NVRTC=$PWD/nvrtc; fi

step() { printf '\n== %s\n' "$*"; "$@"; }

step ./gather --shapes 1x4096 --seconds 0.1 # fails where there is no GPU; the tests would say so and pass

# FlashInfer compiles what it is asked for, in minutes: that begins now, while nothing is timed.
preparing=
if python3 -c 'import torch' 2>/dev/null; then
  if [ -d wheels ]; then
    export PYTHONPATH=$PWD/site
    python3 -m pip install --quiet --no-index --no-deps --upgrade --target site wheels/*.whl ||
      echo "the wheels cannot be installed"
  fi
  timeout 240 python3 gpu_peers.py --prepare >prepare.log 2>&1 &
  preparing=$!
  trap 'kill "$preparing" 2>/dev/null || true' EXIT
fi

step ./cuda-suite driver:: --nocapture
step ./cuda-suite kernels::gpu::
step ./suite cuda::shapes_at_the_limits
step ./suite backends:: --skip threads --skip reports
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step compute-sanitizer --tool "$tool" --error-exitcode 1 ./cuda-suite kernels::gpu::
    step compute-sanitizer --tool "$tool" --error-exitcode 1 ./suite cuda::shapes_at_the_limits
  done
else
  echo "no compute-sanitizer: memcheck and racecheck are left out"
fi

# Kernels, and what other libraries take for the same. Their faults are no faults of ours.
if [ -n "$preparing" ]; then
  wait "$preparing" || echo "FlashInfer could not be prepared"
  cat prepare.log
fi
step ./gather --seconds 0.3 --json gather.json
if [ -n "$preparing" ]; then
  step timeout 200 python3 gpu_peers.py gather.json --limit 150 --json gpu-peers.json ||
    echo "the comparison with other libraries failed"
else
  echo "python3 has no PyTorch: the comparison with other libraries is left out"
fi

# Whole steps beside dense attention: rows in the device's memory, and in the host's.
bench() { step ./vattention bench --backend cuda --threads 1 --seconds 2 "$@"; }
bench --tokens 32768,131072 --density 0.05,0.1 --json bench.json
bench --tokens 131072 --density 0.1 --offload --json bench-offload.json
bench configs/vattention-oracle.toml --tokens 32768,131072 --json bench-promise.json
