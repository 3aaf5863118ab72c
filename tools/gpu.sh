#!/usr/bin/env bash
# Tests and benchmarks of the cuda backend, to run in the folder that `just gpu` makes, on a machine
# with an NVIDIA GPU and its driver: the tests on the device (also under compute-sanitizer, if it is
# installed), the speed of reading and selecting rows beside other libraries (if Python has
# PyTorch), and the time of whole steps beside dense attention.
set -euo pipefail
cd "$(dirname "$0")"

export CARGO_MANIFEST_DIR=$PWD # has configs/ and weights/
if [ -d nvrtc ]; then export VATTENTION_NVRTC=$PWD/nvrtc; fi

step() { printf '\n== %s\n' "$*"; "$@"; }

step ./gather --shapes 1x4096 --seconds 0.1 # fails without a GPU, while the tests would pass

# FlashInfer compiles its kernels for minutes. This begins now, while nothing is timed.
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
  echo "memcheck and racecheck are skipped: compute-sanitizer was not found"
fi

# Kernels beside those of other libraries, whose failures do not end this script.
if [ -n "$preparing" ]; then
  wait "$preparing" || echo "FlashInfer could not be prepared"
  cat prepare.log
fi
step ./gather --seconds 0.3 --json gather.json
if [ -n "$preparing" ]; then
  step timeout 200 python3 gpu_peers.py gather.json --limit 150 --json gpu-peers.json ||
    echo "the comparison with other libraries failed"
else
  echo "the comparison with other libraries is skipped: python3 has no PyTorch"
fi

# Whole steps beside dense attention, with rows in device memory and in host memory.
bench() { step ./vattention bench --backend cuda --threads 1 --seconds 2 "$@"; }
bench --tokens 32768,131072 --density 0.05,0.1 --json bench.json
bench --tokens 131072 --density 0.1 --offload --json bench-offload.json
bench configs/vattention-oracle.toml --tokens 32768,131072 --json bench-promise.json
