"""Make cli/tests/golden/chat.gguf: a tiny model in one file, with a tokenizer and a chat template.

    python3 tools/bench_prefill.py --install
    .venv-prefill/bin/python tools/make_chat_gguf.py -o cli/tests/golden/chat.gguf
    .venv-prefill/bin/python tools/make_chat_gguf.py --split 8 \\
        -o runtime/llm/tests/golden/gguf-split/chat.gguf

--split N writes the same model in parts of N tensors, as llama.cpp's gguf-split does:
chat-00001-of-00003.gguf and so on, beside the output, which is not written.

Tests of the command use it in place of a model's folder. The weights are random, so the model's
answers have no meaning. The vocabulary is one of runtime/llm/tests/golden/gguf-tokenizer, made by
make_gguf_tokenizer_golden.py; the template is ChatML. The same command gives the same bytes.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TOKENIZERS = ROOT / "runtime/llm/tests/golden/gguf-tokenizer"
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, CONTEXT = 64, 96, 2, 4, 2, 2048
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors by name."""
    keys = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (keys, HIDDEN),
        "attn_v": (keys, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    tensors = {"token_embd.weight": (tokens, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for number in range(LAYERS):
        tensors |= {f"blk.{number}.{name}.weight": shape for name, shape in layer.items()}
    return tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--split", type=int, default=0, metavar="N", help="tensors per part")
    args = parser.parse_args()
    output = args.output
    metadata = {f"tokenizer.ggml.{key}": value for key, value in read_tokenizer().items()}
    tokens = len(metadata["tokenizer.ggml.tokens"])
    writer = gguf.GGUFWriter(output, "llama", split_max_tensors=args.split)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for key, value in metadata.items():
        writer.add_key_value(key, value, *kind(value))
    writer.add_chat_template(TEMPLATE)
    generator = np.random.default_rng(0)
    for name, shape in shapes(tokens).items():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        else:
            writer.add_tensor(name, generator.normal(0, 2 * HIDDEN**-0.5, shape).astype(np.float16))
    output.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for path in writer.format_shard_names(output):
        print(f"{path}: {path.stat().st_size} bytes, {tokens} tokens")


def read_tokenizer() -> dict[str, object]:
    """Reads the metadata of SmolLM's family, and the vocabulary that byte-level families share."""
    family = json.loads((TOKENIZERS / "smollm.json").read_text())["metadata"]
    vocabulary = json.loads((TOKENIZERS / "byte-level.json").read_text())
    return {**family, **vocabulary}


def kind(value: object) -> tuple:
    """Returns the GGUF type of a value, and for a list also the type of its items."""
    kinds = {
        str: gguf.GGUFValueType.STRING,
        bool: gguf.GGUFValueType.BOOL,
        int: gguf.GGUFValueType.INT32,
    }
    if isinstance(value, list):
        return gguf.GGUFValueType.ARRAY, kinds[type(value[0])]
    return (kinds[type(value)],)


if __name__ == "__main__":
    main()
