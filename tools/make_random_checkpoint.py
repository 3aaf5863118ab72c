#!/usr/bin/env python3
"""Make a Llama checkpoint of any size with random weights, for measurements of speed.

    pip install torch==2.15.0 safetensors==0.8.0
    python tools/make_random_checkpoint.py -o random-1b
    python tools/make_random_checkpoint.py --hidden 256 --layers 4 --heads 4 --kv-heads 2 \\
        --vocab 1000 --intermediate 512 -o tiny

The time of a token depends on the shape of a model, not on its weights. The default shape is that
of Llama-3.2-1B (2.5 GB in bf16). The checkpoint has no tokenizer, and its output has no meaning.
Weights are normal with a standard deviation of 0.02 and norms are 1, so that no number grows large.

Exit codes: 0 success, 2 invalid input.
"""

import argparse
import json
import os
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import save_file
except ImportError as missing:
    print(
        f"make_random_checkpoint: {missing}; install the packages listed in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
DEVIATION = 0.02


class InputError(Exception):
    """Error in the command line; the exit code is 2."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(message)


def parse_arguments():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="FOLDER", help="new folder"
    )
    sizes = {
        "hidden": 2048,
        "layers": 16,
        "heads": 32,
        "kv-heads": 8,
        "head-dim": 64,
        "intermediate": 8192,
        "vocab": 128256,
    }
    for name, size in (sizes | {"context": 131072}).items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default {size}")
    parser.add_argument("--rope-theta", type=float, default=500000.0)
    parser.add_argument(
        "--rope", choices=["llama3", "default"], default="llama3", help="scaling of frequencies"
    )
    parser.add_argument(
        "--untied", action="store_true", help="separate output weights, not the embeddings"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in [*sizes, "context"]:
        if getattr(args, name.replace("-", "_")) < 1:
            raise InputError(f"--{name}: expected at least 1")
    if args.heads % args.kv_heads or args.head_dim % 2:
        raise InputError(
            "expected --heads to be a multiple of --kv-heads, and --head-dim to be even"
        )
    return args


def config(args):
    llama3 = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": args.vocab,
        "hidden_size": args.hidden,
        "intermediate_size": args.intermediate,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.kv_heads,
        "head_dim": args.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": args.rope_theta,
        "rope_scaling": llama3 if args.rope == "llama3" else None,
        "max_position_embeddings": args.context,
        "tie_word_embeddings": not args.untied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": NAMES[args.dtype],
    }


def shapes(args):
    """Returns the shapes of all tensors by their names in `transformers`."""
    rows, kv_rows = args.heads * args.head_dim, args.kv_heads * args.head_dim
    layer = {
        "input_layernorm": [args.hidden],
        "self_attn.q_proj": [rows, args.hidden],
        "self_attn.k_proj": [kv_rows, args.hidden],
        "self_attn.v_proj": [kv_rows, args.hidden],
        "self_attn.o_proj": [args.hidden, rows],
        "post_attention_layernorm": [args.hidden],
        "mlp.gate_proj": [args.intermediate, args.hidden],
        "mlp.up_proj": [args.intermediate, args.hidden],
        "mlp.down_proj": [args.hidden, args.intermediate],
    }
    found = {"model.embed_tokens": [args.vocab, args.hidden], "model.norm": [args.hidden]}
    for number in range(args.layers):
        found |= {f"model.layers.{number}.{part}": shape for part, shape in layer.items()}
    return found | ({"lm_head": [args.vocab, args.hidden]} if args.untied else {})


def weights(args):
    generator = torch.Generator().manual_seed(args.seed)
    tensors = {}
    for name, shape in shapes(args).items():
        norm = len(shape) == 1
        numbers = (
            torch.ones(shape)
            if norm
            else torch.empty(shape).normal_(0, DEVIATION, generator=generator)
        )
        tensors[f"{name}.weight"] = numbers.to(DTYPES[args.dtype])
    return tensors


def run(args):
    try:
        args.output.mkdir()
    except OSError as error:
        raise InputError(
            f"-o {args.output}: {error.strerror}; expected a new folder in an existing one"
        )
    beside = args.output / "model.safetensors.partial"
    try:
        save_file(weights(args), beside, {"format": "pt"})
        (args.output / "config.json").write_text(json.dumps(config(args), indent=2) + "\n")
        os.replace(beside, args.output / "model.safetensors")
    finally:
        beside.unlink(missing_ok=True)
    print(f"{args.output}: {(args.output / 'model.safetensors').stat().st_size / 1e9:.2f} GB")


def main():
    try:
        run(parse_arguments())
    except InputError as error:
        print(f"make_random_checkpoint: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
