# Run all checks of CI.
check:
    bash .ci/run

# Run all tests.
test:
    cargo test --release --workspace

# Run the tests without the slow ones (table of promises, all backends, emulated GPU).
quick:
    cargo test --release --workspace -- --skip promise_table:: --skip backends:: --skip cuda --skip promises:: --skip kernels::

# Compare every pipeline with exact attention on the shipped trace.
compare *ARGS:
    cargo run --release -- compare configs/*.toml --trace data/smollm2.safetensors {{ARGS}}

# Compare selectors at equal density, with and without a sample: the table of docs/methods.md.
selectors *ARGS:
    python3 tools/compare_selectors.py data/smollm2.safetensors {{ARGS}}

# Needs Debian's apt-get and pip, which get the model and the texts.
# Measure methods at equal density on the real model; make docs/leaderboard. It can be interrupted.
leaderboard *ARGS:
    python3 tools/get_smollm2.py
    python3 tools/get_prose.py
    python3 tools/get_texts.py
    cargo build --release --quiet
    python3 tools/leaderboard.py {{ARGS}}

# Run the studies of the paper's experiments on a trace; plots go to real/results/studies.
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

# Test the coverage of error bars on each kind of synthetic head; docs/results.md has the results.
calibration:
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build --release --quiet
    for kind in diffuse typical sharp vsharp local osc needle heavy; do
        trace=target/calibration-$kind.safetensors
        target/release/vattention synth --kind $kind --tokens 4096 --query-heads 4 --kv-heads 1 --head-dim 64 --queries 8 -o $trace
        target/release/vattention study calibration configs/{priority,vattention-oracle,stratified,hybrid}.toml --deltas 0.02,0.1,0.3,0.5 --trace $trace
    done

# Usage: `just attacks table PIPELINE...` or `just attacks search PIPELINE...`. It takes hours, and
# continues after an interruption; examples/attacks/main.rs describes the options.
# Attack the promise of pipelines with heads built or evolved to break it.
attacks *ARGS:
    cargo run --release --example attacks -- {{ARGS}}

# Measure decode speed beside dense attention and memory bandwidth, and the kernels separately.
bench *ARGS:
    cargo run --release -- bench {{ARGS}}
    cargo bench

# Test the Python package: a wheel, its tests in empty environments, its types and examples.
python:
    python/test.sh

# Regenerate the golden files, and compare them with the committed ones (minutes; 5 GB of packages).
golden:
    tools/golden.sh

# Make the release files: packages of the crates in target/package, a wheel in target/wheels.
package:
    cargo package --workspace --exclude custom-plugins --exclude vattention-python --no-verify --locked
    python3 -m pip wheel --no-deps ./python --wheel-dir target/wheels

# Format the code, and run clippy.
tidy:
    cargo fmt --all
    cargo clippy --workspace --all-targets

# Run all kernels of the cuda backend under an address sanitizer, in emulation. It takes minutes.
sanitize:
    VATTENTION_REQUIRE_EMULATOR=1 cargo test --release -p vattention-cuda --test suite kernels::sanitizer::every_access -- --ignored

# Make target/gpu, a folder to copy to a machine that has a GPU and no Rust; run ./gpu.sh there.
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

# Needs Python, a C compiler and several GB; installs into .venv-peers.
# Measure decode speed beside PyTorch and llama.cpp.
peers *ARGS:
    python3 tools/bench_peers.py --install
    .venv-peers/bin/python tools/bench_peers.py --json peers.json {{ARGS}}

# Needs Python, Debian's apt-get, a C++ compiler and several GB; installs into .venv-prefill.
# Measure the time to read a prompt beside transformers and llama.cpp, on a real model.
prefill *ARGS:
    python3 tools/get_smollm2.py
    python3 tools/get_prose.py
    python3 tools/bench_prefill.py --install
    cargo build --release -p vattention-cli
    .venv-prefill/bin/python tools/bench_prefill.py --json prefill.json {{ARGS}}

# Needs Debian's apt-get for Chromium, and 0.7 GB of Python packages outside this folder.
# Test the server in a browser, with published clients, and under load.
server:
    cargo build --release -p vattention-cli
    python3 tools/test_page.py
    tools/test_clients.sh
    python3 tools/load_server.py

# Needs Python, Debian's apt-get and a C++ compiler; installs into .venv-serve.
# Measure the server's speed beside llama.cpp's, on a real model.
serve *ARGS:
    python3 tools/get_smollm2.py
    python3 tools/get_prose.py
    python3 tools/bench_serve.py --install
    cargo build --release -p vattention-cli
    python3 tools/bench_serve.py --json serve.json {{ARGS}}

# Needs Python and a C++ compiler; installs into .venv-serve.
# Compare an attention node for ggml that calls the C interface with ggml's own attention.
capi *ARGS:
    python3 tools/bench_ggml.py {{ARGS}}

# Needs 12 GB of memory; installs into .venv-llm.
# Measure decode speed of whole models beside candle-transformers, and the parts of a token's time.
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

# Fuzz the parsers of pipeline files and traces, a minute each (needs nightly and cargo-fuzz).
fuzz:
    cargo +nightly fuzz run config -- -max_total_time=60
    cargo +nightly fuzz run trace -- -max_total_time=60

# Test that interrupted shards, and a cluster that loses a node, give the results of one run.
scale:
    bash real/scale.sh

# Run all measurements on the real model, or some parts (hours; continues after interruptions).
real *PARTS:
    bash real/run.sh {{PARTS}}
