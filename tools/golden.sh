#!/usr/bin/env bash
# Runs every make_* tool, and fails if a golden file differs from its tool's output. Reproducible
# files are written in place and compared by git; logits of checkpoints, which are rounded
# differently on each machine, are checked within a tolerance.
#
# Packages (5 GB) are installed in .venv-golden; GOLDEN_PYTHON names another Python that has them.
# Two tools have further requirements, and are skipped if these are missing: make_smollm2_golden.py
# needs the real model and llama-cpp-python (`just prefill` installs both), make_metric_golden.py
# needs the published scripts in the folder METRIC_SCRIPTS.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${GOLDEN_PYTHON:-.venv-golden/bin/python}
if [ -z "${GOLDEN_PYTHON:-}" ] && [ ! -e .venv-golden/whole ]; then
  python3 -m venv .venv-golden
  .venv-golden/bin/pip install --quiet -r tools/golden/requirements.txt
  touch .venv-golden/whole
fi

step() { printf '\n== %s\n' "$*" >&2; "$@"; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Writes the output of a tool to a file, if the tool succeeds.
write() { # golden file, tool and its arguments
  local file=$1
  shift
  step "$python" "$@" > "$scratch/made"
  cp "$scratch/made" "$file"
}

golden=runtime/llm/tests/golden
write tests/golden/order.json tests/golden/make_order.py
write tests/golden/formulas.json tests/golden/make_formulas.py
write tests/golden/clusters.json tools/make_cluster_golden.py
for selector in sparq hata duo pyramid scissorhands fastgen; do
  write "tests/golden/$selector.json" tools/make_selectors_golden.py "$selector"
done
for selector in prompt-eviction tova reuse; do
  write "tests/golden/$selector.json" tools/make_state_golden.py "$selector"
done
for selector in rotated-codes ark-vale socket; do
  write "tests/golden/$selector.json" tools/make_retrieval_golden.py "$selector"
done
step "$python" tools/make_gguf_golden.py -o $golden
step "$python" tools/make_mxfp4_golden.py -o $golden/mxfp4
step "$python" tools/make_gguf_tokenizer_golden.py -o $golden
step "$python" tools/make_chat_gguf.py -o cli/tests/golden/chat.gguf
step "$python" tools/make_chat_gguf.py --split 8 -o $golden/gguf-split/chat.gguf
step "$python" tools/make_chat_golden.py -o runtime/llm/tests/golden/chat/environment.json
tiny=$(ls $golden/gguf | sed "s|\\(.*\\)\\.gguf|$golden/\\1|")
step "$python" tools/make_tiny_gguf.py $tiny -o $golden/gguf
step "$python" tools/make_llm_golden.py --check -o $golden
step "$python" tools/make_random_checkpoint.py --hidden 64 --layers 2 --heads 4 --kv-heads 2 \
  --vocab 100 --intermediate 128 -o "$scratch/tiny"

if [ -x .venv-prefill/bin/python ] && [ -d models/smollm2 ]; then
  step .venv-prefill/bin/python tools/make_smollm2_golden.py --check -o $golden/smollm2.json
else
  echo "make_smollm2_golden.py is skipped: the real model or llama-cpp-python was not found"
fi
if [ -n "${METRIC_SCRIPTS:-}" ]; then
  step "$python" tools/make_metric_golden.py "$METRIC_SCRIPTS"
else
  echo "make_metric_golden.py is skipped: METRIC_SCRIPTS names no folder of published scripts"
fi
step git diff --exit-code --stat -- tests/golden crates/*/tests/golden
