#!/usr/bin/env bash
# Runs the measurements on the real model, SmolLM2-135M-Instruct: `just real PART...`, by default
# all parts. An interrupted part continues when it is run again. Parts that evaluate the model stop
# after 38 minutes and exit with 75 if they are not complete; run them again. On two cores, ruler
# and ruler-densities need two such runs and ruler-8191 three; learn takes an hour, studies 25
# minutes, verify ten minutes per pipeline, other parts less. Run one part at a time, because parts
# write the same files.
set -euo pipefail
cd "$(dirname "$0")/.."

model=models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
out=real/results
pipelines=real/pipelines
haystack=texts/kjv-haystack.txt
# Tasks in which the dense model has a score of at least 20 %, according to ruler-all.
tasks=niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multivalue,niah_multiquery
parts="get gguf prefill learn traces verify verify-indexes mixed ruler-all ruler ruler-densities ruler-2048 ruler-8191 ruler-magic-pig ruler-prefill ruler-epsilon baselines steps long speed studies benchmarks"

vattention=target/release/vattention

# Shows the output of a command, and stores it when it is complete, so that an interruption leaves
# the last complete output.
whole() { # name of the output, command
    local name=$1 status=0
    shift
    "$@" | tee target/real/$name.part || status=$?
    case $status in
        0) mv target/real/$name.part $out/$name.txt ;;
        124) echo "$name is not complete; run the same command again to continue" >&2; exit 75 ;;
        *) exit $status ;;
    esac
}
missing() { [ ! -e "$1" ]; }

# Downloads the model and texts.
part_get() {
    python3 tools/get_smollm2.py
    python3 tools/get_prose.py
    python3 tools/get_texts.py
}

# Compares logits with those of llama.cpp and transformers.
part_gguf() { cargo test --release -p vattention-llm --test suite gguf:: -- --ignored; }

# Measures the time to read a prompt, beside transformers and llama.cpp.
part_prefill() {
    .venv-prefill/bin/python -c 'import llama_cpp, torch' 2>/dev/null || python3 tools/bench_prefill.py --install
    whole prefill .venv-prefill/bin/python tools/bench_prefill.py --model $model --text $haystack --json target/real/prefill.json
}

# Learns hash maps from texts of several kinds; channels, bases, matrices of HATA and gates from two
# of them. None of these texts is evaluated. All are for every layer, and stored in weights/; delete
# them to learn them again.
part_learn() {
    local all=() text
    for text in kjv-train vim-manual; do
        all+=(target/real/$text.safetensors)
        capture $text "" 8192 --queries 2048 --prompt-queries 512
        capture $text -heads 8192 --queries 256
    done
    capture kjv-heldout "" 8192 --queries 64
    missing weights/smollm2-channels.json &&
        $vattention calibrate double-sparsity --trace "${all[@]}" -o weights/smollm2-channels.json
    missing weights/smollm2-basis.safetensors &&
        $vattention calibrate loki --trace "${all[@]}" -o weights/smollm2-basis.safetensors
    train hata recall-all-layers-hata "${all[@]}"
    missing weights/smollm2-gates.tsv &&
        $vattention calibrate duo-attention --trace target/real/{kjv-train,vim-manual}-heads.safetensors -o weights/smollm2-gates.tsv
    for text in code-train tables-train facts-train; do
        all+=(target/real/$text.safetensors)
        capture $text "" 8192 --queries 2048 --prompt-queries 512
    done
    train hash recall-all-layers "${all[@]}"
}

train() { # kind, name of the output, traces
    local kind=$1 name=$2 maps=weights/smollm2-$1.safetensors resume=
    shift 2
    missing $maps || return 0
    missing $maps.checkpoint || resume=--resume
    whole $name $vattention train-$kind --trace "$@" --held-out target/real/kjv-heldout.safetensors -o $maps $resume
}

capture() { # name of the text, suffix of the trace's name, tokens, options
    local text=$1 trace=target/real/$1$2.safetensors tokens=$3
    shift 3
    missing $trace || return 0
    $vattention capture --model $model --text texts/$text.txt --tokens $tokens "$@" -o $trace
}

# Captures the shipped trace, and the trace of all layers.
part_traces() {
    missing data/smollm2.safetensors &&
        $vattention capture --model $model --text texts/kjv-trace.txt --tokens 6144 --layers 9,23 -o data/smollm2.safetensors
    capture kjv-trace "" 8192 --queries 32
}

# Tests promises in all heads of all layers.
part_verify() {
    verify "" configs/{priority,vattention-oracle,stratified,vattention-strict}.toml
}

# Tests promises with each index, which picks 5 % in addition to the first 16 and last 64 tokens.
part_verify-indexes() {
    verify "--set selectors.1.size=64 --set selectors.2.size=0.05" $pipelines/vattention-{oracle-top-k,hash-attention,quest,double-sparsity,loki,pq-cache}.toml
}

verify() { # options, pipelines
    capture kjv-trace "" 8192 --queries 32
    local options=$1 file verdict
    shift
    for file in "$@"; do
        verdict=target/real/verify-$(basename $file .toml).json
        # Exit codes 1 and 3 are verdicts (contradicted, undecided), not errors.
        missing $verdict && { $vattention verify $file $options --trace target/real/kjv-trace.safetensors --json $verdict ||
            [[ $? = [13] ]]; }
    done
    whole promises python3 real/promises.py target/real/verify-*.json
}

# Tests the promise in every row of a text that is prose in its first half and a manual in its
# second, with a token list for each query head and with one for each KV head.
part_mixed() {
    missing target/real/mixed.txt &&
        { head -c 9000 texts/kjv-trace.txt; head -c 9000 texts/vim-manual.txt; } > target/real/mixed.txt
    missing target/real/mixed.safetensors && $vattention capture --model $model --text target/real/mixed.txt \
        --tokens 3000 --queries 16 -o target/real/mixed.safetensors
    mkdir -p target/real/mixed
    whole mixed python3 real/mixed.py $vattention target/real/mixed.safetensors configs/priority.toml target/real/mixed
}

evaluate() { # name of the output, options
    local name=$1
    shift
    whole $name timeout --foreground --signal INT 38m $vattention evaluate --model $model --dtype bf16 --at-once $(nproc) \
        --haystack $haystack --results ${answers:-$out/answers.jsonl} --leave-out-below 0.2 --json target/real/$name.json "$@"
}

# Evaluates all tasks with the dense model. Tasks that it cannot do at 2048 and 4096 tokens are
# omitted at 8191.
part_ruler-all() {
    evaluate ruler-all --pipelines configs/dense.toml --cases 10 --context 2048,4096 --no-errors \
        --tasks $tasks,niah_multikey_2,niah_multikey_3,vt,cwe,fwe
}

# Evaluates every method at 4096 tokens and a density of 10 %. No mean includes fwe, but the search
# for the density uses its texts, too.
part_ruler() {
    evaluate ruler --tasks $tasks,fwe --context 4096 --cases 10 --density 0.1 --plot $out/ruler.svg \
        --pipelines configs/{dense,snapkv,h2o,scissorhands,priority}.toml \
        $pipelines/{streaming-llm,oracle-top-k,oracle-top-p,hash-attention,hata,quest,pq-cache,double-sparsity,loki,sparq}.toml \
        $pipelines/{squeezed-attention,tactic,retrieval-attention}.toml \
        $pipelines/vattention-{oracle-top-k,oracle-top-p,hash-attention}.toml
}

# Evaluates the paper's main methods at other densities, baselines with an index of 32 bits per
# token that read 512 tokens, and MagicPIG with its own sizes. These share a run, because the
# context of a case is read once for all pipelines.
part_ruler-densities() {
    headline ruler-densities --tasks $tasks --context 4096 --density 0.05,0.2 --plot $out/ruler-densities.svg \
        --as-they-stand $pipelines/32-bits/*.toml $pipelines/magic-pig.toml
}

headline() { # name of the output, options
    local name=$1
    shift
    evaluate $name --cases 10 --pipelines configs/{dense,priority}.toml \
        $pipelines/{oracle-top-k,oracle-top-p,hash-attention}.toml \
        $pipelines/vattention-{oracle-top-k,oracle-top-p,hash-attention}.toml "$@"
}

# Evaluates the paper's main methods at other lengths.
part_ruler-2048() { headline ruler-2048 --tasks $tasks --context 2048 --density 0.1 --no-errors; }
part_ruler-8191() { headline ruler-8191 --tasks $tasks --context 8191 --density 0.1 --no-errors; }

# Evaluates MagicPIG behind dense prompts, as its authors do.
part_ruler-magic-pig() {
    evaluate ruler-magic-pig --tasks $tasks --context 4096 --cases 10 --setup a \
        --pipelines configs/dense.toml $pipelines/magic-pig.toml
}

# Evaluates dense decoding behind prompts that SampleAttention read, with the paper's coverage and a
# smaller one; ruler-all has the same cases behind dense prompts. The answers go to a separate file,
# because the pipelines have the same names.
part_ruler-prefill() {
    local name
    for name in sample-attention sample-attention-0.8; do
        answers=$out/answers-prefill.jsonl evaluate ruler-$name --tasks niah_single_1,niah_single_2,niah_multikey_1 --context 4096 --cases 10 \
            --no-errors --pipelines configs/dense.toml --prefill configs/prefill/$name.toml
    done
}

# Evaluates promises of several epsilons.
part_ruler-epsilon() {
    evaluate ruler-epsilon --tasks $tasks --context 2048 --cases 10 --epsilons 0.05,0.1,0.2,0.4,0.8 \
        --pipelines configs/{dense,priority}.toml $pipelines/vattention-oracle-top-k.toml
}

# Measures the output error of the baselines of ruler-densities on the trace of all layers.
part_baselines() {
    capture kjv-trace "" 8192 --queries 32
    whole baselines $vattention compare $pipelines/32-bits/*.toml --trace target/real/kjv-trace.safetensors \
        --json target/real/baselines.json
}

# Generates a long answer, and compares each step with dense attention.
part_steps() {
    local file name written=()
    for file in configs/{priority,vattention-oracle,oracle-top-k,streaming-llm}.toml; do
        name=$(basename $file .toml)
        written+=(target/real/steps-$name.json)
        missing target/real/steps-$name.json || continue
        $vattention generate --quiet --model $model --pipeline $file --chat --tokens 4000 --ignore-eos \
            --prompt "Tell me a long story about a lighthouse keeper, chapter by chapter." --steps target/real/steps-$name.json > /dev/null
    done
    whole steps $vattention plot-steps "${written[@]}" --plot $out/steps.svg
    whole steps-last $vattention plot-steps "${written[@]}" --last 1000
}

# Compares pipelines on caches longer than the model's context, which consist of independent chunks
# of 4096 tokens.
part_long() {
    local tokens
    for tokens in 32768 131072; do
        capture vim-manual -$tokens $tokens --layers 9,23 --chunk 4096
        whole long-$tokens $vattention compare configs/{dense,priority,priority-rigorous,oracle-top-k,vattention-oracle}.toml \
            --trace target/real/vim-manual-$tokens.safetensors
    done
}

# Measures the time of a token, and of its attention, behind about 7000 tokens.
part_speed() {
    local file
    head -c 28000 texts/kjv-trace.txt > target/real/speed-text.txt
    for file in configs/{dense,priority,priority-rigorous,vattention-oracle,vattention-channels,stratified,snapkv,h2o}.toml \
        $pipelines/{hash-attention,double-sparsity,loki,quest,pq-cache,vattention-hash-attention}.toml; do
        $vattention generate --quiet --model $model --dtype bf16 --context target/real/speed-text.txt --tokens 33 \
            --pipeline $file --json target/real/speed-$(basename $file .toml).json > /dev/null
    done
    whole speed python3 real/speed.py target/real/speed-*.json
}

# Checks that files in the layouts of published benchmarks can be evaluated.
part_benchmarks() {
    local name folder context
    for name in longbench longbench-v2 ruler babilong loogle infinitebench zero-scrolls math500 aime2024 aime2025 aime2026; do
        case $name in math500 | aime*) folder=math ;; *) folder=$name ;; esac
        # Summaries of InfiniteBench and ZeroSCROLLS take up to 1200 tokens.
        case $name in infinitebench | zero-scrolls) context=2048 ;; *) context=768 ;; esac
        whole benchmark-$name timeout --foreground --signal INT 38m $vattention evaluate --model $model --dtype bf16 --chat --context $context \
            --no-errors --pipelines configs/{dense,priority}.toml --benchmark $name --files data/benchmarks/$folder --results target/real/benchmarks.jsonl
    done
}

# Runs the studies of the paper's figures on all layers: eight of the trace's 32 queries are 2160
# rows. Calibration, which is not in the paper, would take hours; docs/results.md has it for the
# shipped trace.
part_studies() {
    capture kjv-trace "" 8192 --queries 32
    local name
    for name in tightness epsilon base-sample normality sensitivity coverage bias; do study $name; done
    study pareto configs/{dense,oracle-top-k,twilight}.toml $pipelines/{hash-attention,quest,loki,double-sparsity,pq-cache,streaming-llm}.toml
    study limit configs/{vattention-oracle,hybrid,vattention-paper-{denominator,numerator,sdpa}-clt}.toml $pipelines/vattention-hash-attention.toml
}

study() { # name, pipelines
    local name=$1
    missing $out/study-$name.txt || return 0
    whole study-$name $vattention study "$@" --trace target/real/kjv-trace.safetensors --queries 8 --plot $out/study-$name.svg
}

mkdir -p target/real $out
for part in ${@:-$parts}; do
    case " $parts " in
        *" $part "*) ;;
        *) echo "real/run.sh: unknown part $part; expected some of: $parts" >&2; exit 2 ;;
    esac
done
cargo build --release --quiet
for part in ${@:-$parts}; do
    echo "== $part"
    time part_$part
done
