"""Make the checkpoints and logits of runtime/llm/tests/golden with Hugging Face transformers.

    python3 -m venv .venv-llm
    .venv-llm/bin/pip install transformers==5.23.0 torch safetensors
    .venv-llm/bin/python tools/make_llm_golden.py -o runtime/llm/tests/golden
    .venv-llm/bin/python tools/make_llm_golden.py --check -o runtime/llm/tests/golden

Each case is a checkpoint with random weights of a supported architecture, and the outputs of
transformers in float32: logits after a prompt, logits after further tokens, and a greedy
continuation. Together the cases have every option that runtime/llm reads: tied and untied
embeddings, biases, norms of heads, an explicit head_dim, all kinds of scaled rotary embeddings, all
dtypes, shards, and both formats of config.json (transformers 4 and 5).

A greedy continuation must not depend on rounding, and must not repeat itself. Therefore, seeds are
tried until the best token leads by MARGIN at every step and VARIETY different tokens occur.

Exit codes: 0 success, 1 the files differ from the outputs of transformers (--check), 2 a package is
missing.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import (
        AutoModelForCausalLM,
        LlamaConfig,
        Ministral3Config,
        MistralConfig,
        Qwen2Config,
        Qwen3Config,
        Qwen3MoeConfig,
    )
except ImportError as missing:
    print(
        f"make_llm_golden: {missing}; install the packages listed in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

PROMPT, DECODE, GREEDY = 40, 12, 50
MARGIN, VARIETY = 0.01, 25
END = 127
TOLERANCE = 2e-5
SMALL = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_id=END,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)
MINISTRAL3 = YARN | dict(
    beta_fast=4.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3
)

EXPERTS = SMALL | dict(head_dim=16, num_experts=6, moe_intermediate_size=24)

# name: (config, dtype, True for the config.json of transformers 4, size of a shard)
CASES = {
    "llama3": (
        lambda: LlamaConfig(**SMALL, tie_word_embeddings=True, rope_parameters=LLAMA3),
        torch.bfloat16,
        True,
        None,
    ),
    "llama-sharded": (
        lambda: LlamaConfig(
            **SMALL,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0),
        ),
        torch.float32,
        False,
        "150KB",
    ),
    "mistral": (lambda: MistralConfig(**SMALL, sliding_window=None), torch.float16, True, None),
    "qwen2": (
        lambda: Qwen2Config(
            **SMALL,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        ),
        torch.bfloat16,
        True,
        None,
    ),
    "qwen3": (lambda: Qwen3Config(**SMALL, head_dim=24), torch.float32, False, None),
    "qwen3-moe": (
        lambda: Qwen3MoeConfig(**EXPERTS, num_experts_per_tok=2, norm_topk_prob=True),
        torch.bfloat16,
        False,
        None,
    ),
    "qwen3-moe-mixed": (
        lambda: Qwen3MoeConfig(
            **EXPERTS | dict(num_hidden_layers=4, num_experts_per_tok=3, norm_topk_prob=False),
            decoder_sparse_step=2,
            mlp_only_layers=[3],
        ),
        torch.float16,
        True,
        None,
    ),
    "qwen2-yarn": (lambda: Qwen2Config(**SMALL, rope_parameters=YARN), torch.bfloat16, True, None),
    "ministral3": (
        lambda: Ministral3Config(
            **SMALL, head_dim=16, sliding_window=None, rope_parameters=MINISTRAL3
        ),
        torch.bfloat16,
        False,
        None,
    ),
}


# Checkpoints.


def initialise(model, dtype, generator):
    """Fills a model with random numbers, large enough for sharp attention and visible biases."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            value = 1 + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif "embed_tokens" in name:
            # Small compared with the output of layers; else, tied embeddings repeat the last token.
            value = 0.3 * noise
        else:
            value = 1.5 * noise / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value.to(dtype))


def as_version_4(folder):
    """Rewrites config.json as transformers 4 does.

    rope_theta and rope_scaling are at the top level, torch_dtype replaces dtype, and there are no
    layer_types.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save(case, model, folder):
    """Writes a checkpoint in the layout of users' checkpoints."""
    _, dtype, version_4, shard = CASES[case]
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard or "1GB")
    if version_4:
        as_version_4(folder)


def load(folder):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


# Outputs.


@torch.no_grad()
def logits(model, tokens):
    """Returns logits without a cache, `[len(tokens), vocab_size]`."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0]


def greedy(model, prompt, margin=0.0):
    """Returns the continuation, and the smallest lead of the best token over the second.

    The continuation ends at a lead below the margin.
    """
    tokens, lead = list(prompt), float("inf")
    while len(tokens) < len(prompt) + GREEDY and lead >= margin:
        best = torch.topk(logits(model, tokens)[-1], 2)
        lead = min(lead, (best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
    return tokens[len(prompt) :], lead


def expected(model, prompt, decode):
    both = logits(model, prompt + decode)
    return {
        "prompt": torch.tensor(prompt, dtype=torch.uint32),
        "decode_tokens": torch.tensor(decode, dtype=torch.uint32),
        "prefill": both[PROMPT - 1].clone(),
        "decode": both[PROMPT:].clone(),
        "greedy": torch.tensor(greedy(model, prompt)[0], dtype=torch.uint32),
    }


def tokens_of(seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    tokens = torch.randint(2, END, (PROMPT + DECODE,), generator=generator).tolist()
    return tokens[:PROMPT], tokens[PROMPT:]


def make(case, folder):
    make_config, dtype, _, _ = CASES[case]
    config = make_config()
    config._attn_implementation = "eager"
    for seed in range(1000):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        initialise(model, dtype, torch.Generator().manual_seed(seed))
        prompt, decode = tokens_of(seed)
        continuation, lead = greedy(model, prompt, MARGIN)
        variety = len(set(continuation))
        if lead >= MARGIN and variety >= VARIETY and END not in continuation:
            save(case, model, folder)
            save_file(expected(load(folder), prompt, decode), folder / "golden.safetensors")
            print(
                f"{case}: seed {seed}, the best token leads by {lead:.3f}, "
                f"{variety} different tokens",
                flush=True,
            )
            return
    raise AssertionError(f"{case}: expected a suitable seed, found none among 1000")


def check(case, folder):
    """Returns True if the files have the outputs of transformers."""
    golden = load_file(folder / "golden.safetensors")
    again = expected(load(folder), golden["prompt"].tolist(), golden["decode_tokens"].tolist())
    worst = max((golden[name] - again[name]).abs().max().item() for name in ("prefill", "decode"))
    same = golden["greedy"].tolist() == again["greedy"].tolist()
    print(f"{case}: logits differ by {worst:.1e}, greedy {'the same' if same else 'differs'}")
    return same and worst <= TOLERANCE


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the cases")
    parser.add_argument(
        "--check", action="store_true", help="compare with the existing files, and write nothing"
    )
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if args.check:
        return 0 if all([check(case, args.out / case) for case in CASES]) else 1
    for case in CASES:
        make(case, args.out / case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
