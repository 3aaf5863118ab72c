# What CI runs.
check:
    bash .ci/run

# All tests.
test:
    cargo test --release --workspace

# The tests that take little time: all but the table of promises, every pipeline on every backend,
# and steps on an emulated GPU.
quick:
    cargo test --release --workspace -- --skip promise_table:: --skip backends:: --skip cuda --skip promises:: --skip kernels::

# Every pipeline against exact attention on the shipped trace.
compare *ARGS:
    cargo run --release -- compare configs/*.toml --trace data/smollm2.safetensors {{ARGS}}

# Every selector at equal density, with and without a sample: the table of docs/methods.md.
selectors *ARGS:
    python3 tools/compare_selectors.py data/smollm2.safetensors {{ARGS}}

# Every study of the paper's experiments on the shipped trace, or another: the plots in real/results/studies.
studies TRACE="data/smollm2.safetensors" NAME="smollm2" *ARGS:
    #!/usr/bin/env bash
    set -euo pipefail
    study() {
        echo "== $1"
        cargo run --release --quiet -- study "$@" --trace "{{TRACE}}" --plot "real/results/studies/{{NAME}}-$1.svg" {{ARGS}}
    }
    for name in tightness epsilon base-sample normality sensitivity coverage bias; do study "$name"; done
    study calibration configs/{hybrid,hash-hybrid,priority,vattention-oracle,vattention-hash,stratified}.toml
    study pareto configs/{dense,oracle-top-k,hash-attention,quest,loki,double-sparsity,pq-cache,streaming-llm,twilight}.toml
    study limit configs/{vattention-oracle,vattention-hash,hybrid,vattention-paper-{denominator,numerator,sdpa}-clt}.toml

# Whether error bars are as sure as they say, on each kind of synthetic head: the last table of docs/results.md.
calibration:
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build --release --quiet
    for kind in diffuse typical sharp vsharp local osc needle heavy; do
        trace=target/calibration-$kind.safetensors
        target/release/vattention synth --kind $kind --tokens 4096 --query-heads 4 --kv-heads 1 --head-dim 64 --queries 8 -o $trace
        target/release/vattention study calibration configs/{priority,vattention-oracle,stratified,hybrid}.toml --deltas 0.02,0.1,0.3,0.5 --trace $trace
    done

# Attacks on the promise of pipelines, by heads built or bred to break it (hours; continues where it was interrupted):
# `just attacks table PIPELINE...` or `just attacks search PIPELINE...`; examples/attacks/main.rs has the options.
attacks *ARGS:
    cargo run --release --example attacks -- {{ARGS}}

# Decode speed against dense attention and the speed of memory, and the kernels by themselves.
bench *ARGS:
    cargo run --release -- bench {{ARGS}}
    cargo bench

# The Python package: a wheel, its tests in empty environments, its types and examples.
python:
    python/test.sh

# Regenerate the golden files, and compare them with the committed ones (minutes; 5 GB of packages).
golden:
    tools/golden.sh

# What is released: a package of each crate in target/package, and a wheel for this system in target/wheels.
package:
    cargo package --workspace --no-verify --locked
    CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}" python3 -m pip wheel --no-deps ./python --wheel-dir target/wheels

# Format, and show what clippy says.
tidy:
    cargo fmt --all
    cargo clippy --workspace --all-targets

# Make target/gpu, a folder to carry to a machine with a GPU and no Rust, and to run there: ./gpu.sh
gpu:
    #!/usr/bin/env bash
    set -euo pipefail
    built() { cargo build --release --message-format=json "$@" | grep -o '"executable":"[^"]*"' | tail -1 | cut -d '"' -f 4; }
    libraries=$(tools/install_nvrtc.sh)
    rm -rf target/gpu && mkdir -p target/gpu/nvrtc
    cp "$(built -p vattention --test suite)" target/gpu/suite
    cp "$(built -p vattention-cuda --test suite)" target/gpu/cuda-suite
    cp "$(built -p vattention-cuda --example gather)" target/gpu/gather
    cp "$(built -p vattention-cli --bin vattention)" target/gpu/vattention
    cp -r configs weights tools/gpu.sh tools/gpu_peers.py tools/gpu_peers target/gpu/
    rm -rf target/gpu/gpu_peers/__pycache__
    if [ -d target/gpu-wheels ]; then cp -r target/gpu-wheels target/gpu/wheels; fi
    cp "$libraries"/libnvrtc.so.13 "$libraries"/libnvrtc-builtins.so.13.0 target/gpu/nvrtc/
    ls -sh target/gpu

# Decode speed beside PyTorch and llama.cpp (needs Python, a C compiler and several GB; installs into .venv-peers).
peers *ARGS:
    python3 tools/bench_peers.py --install
    .venv-peers/bin/python tools/bench_peers.py --json peers.json {{ARGS}}

# Time of reading a prompt beside transformers and llama.cpp, on a real model (needs Python, Debian's apt-get, a C++ compiler and several GB; installs into .venv-prefill).
prefill *ARGS:
    python3 tools/get_smollm2.py
    python3 tools/get_prose.py
    python3 tools/bench_prefill.py --install
    cargo build --release -p vattention-cli
    .venv-prefill/bin/python tools/bench_prefill.py --json prefill.json {{ARGS}}

# Decode speed of whole models beside candle-transformers, and where a token's time goes (12 GB of memory; installs into .venv-llm).
models *ARGS:
    #!/usr/bin/env bash
    set -euo pipefail
    if [ ! -d random-1b ]; then
        python3 -m venv .venv-llm
        .venv-llm/bin/pip install --quiet torch==2.15.0 safetensors==0.8.0
        .venv-llm/bin/python tools/make_random_checkpoint.py -o random-1b
    fi
    measure() { cargo run --release --quiet --manifest-path benches/llm/Cargo.toml -- "$@" --pipelines configs/{hash-hybrid,quest}.toml; }
    measure models/recall --contexts 8192,16000 --rounds 9 --steps 16 --json models-recall.json
    measure random-1b --contexts 8192,32768 --json models-1b.json {{ARGS}}

# Fuzz the readers of pipeline files and traces, a minute each (needs nightly and cargo-fuzz).
fuzz:
    cargo +nightly fuzz run config -- -max_total_time=60
    cargo +nightly fuzz run trace -- -max_total_time=60

# Shared work: shards of which one is killed, and a cluster of which a node dies, come to what one run does (minutes).
scale:
    bash real/scale.sh

# Everything that is measured on the real model, or some parts of it (hours; each goes on where it was interrupted).
real *PARTS:
    bash real/run.sh {{PARTS}}
