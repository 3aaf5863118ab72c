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
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        Ernie4_5Config,
        Exaone4Config,
        Gemma2Config,
        Gemma3Config,
        Gemma3TextConfig,
        Glm4Config,
        GlmConfig,
        GptOssConfig,
        GraniteConfig,
        Llama4TextConfig,
        LlamaConfig,
        Ministral3Config,
        Mistral3Config,
        MistralConfig,
        MixtralConfig,
        Olmo2Config,
        Olmo3Config,
        Phi3Config,
        Qwen2Config,
        Qwen3Config,
        Qwen3MoeConfig,
        SeedOssConfig,
        SmolLM3Config,
    )
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
except ImportError as missing:
    print(
        f"make_llm_golden: {missing}; install the packages listed in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

PROMPT, DECODE, GREEDY = 40, 12, 50
LONG_PROMPT = 120
"""Length of the prompts of the cases in LONG, which exceeds every window and original context."""
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

TINY = SMALL | dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=4, head_dim=16, pad_token_id=None
)
"""Dimensions of the cases in LONG."""

TINY_YARN = YARN | dict(original_max_position_embeddings=32)
LONGROPE = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    partial_rotary_factor=0.75,
    original_max_position_embeddings=32,
    short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    long_factor=[1.0, 1.5, 2.5, 4.0, 8.0, 16.0],
)
HALF_ROTARY = dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)
LLAMA4 = TINY | dict(intermediate_size=24, intermediate_size_mlp=40, num_attention_heads=2)
GPT_OSS = TINY | dict(
    head_dim=8,
    intermediate_size=32,
    num_local_experts=3,
    num_experts_per_tok=2,
    sliding_window=8,
    rope_parameters=TINY_YARN | dict(beta_fast=4.0, beta_slow=1.0, truncate=False),
)

VISION = dict(
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    image_size=16,
)
"""Dimensions of the vision tower of multimodal models, which is not read."""


def without(numbers, key):
    return {name: value for name, value in numbers.items() if name != key}


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
LONG = {
    "mistral-window": (
        lambda: MistralConfig(**TINY | dict(num_hidden_layers=2), sliding_window=16),
        torch.bfloat16,
        True,
        None,
    ),
    "qwen2-window": (
        lambda: Qwen2Config(
            **without(TINY | dict(num_hidden_layers=3), "head_dim"),
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=12,
            max_window_layers=1,
        ),
        torch.bfloat16,
        True,
        None,
    ),
    "gemma2": (
        lambda: Gemma2Config(
            **TINY,
            sliding_window=16,
            query_pre_attn_scalar=24,
            attn_logit_softcapping=3.0,
            final_logit_softcapping=4.0,
        ),
        torch.bfloat16,
        True,
        None,
    ),
    "gemma3": (
        lambda: Gemma3TextConfig(
            **TINY | dict(num_hidden_layers=7),
            sliding_window=12,
            query_pre_attn_scalar=20,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=4.0, rope_theta=100000.0),
                sliding_attention=dict(rope_type="default", rope_theta=5000.0),
            ),
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "gemma3-multimodal": (
        lambda: Gemma3Config(
            text_config=TINY
            | dict(
                num_hidden_layers=3,
                sliding_window=12,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                query_pre_attn_scalar=20,
            ),
            vision_config=VISION | dict(patch_size=4),
            mm_tokens_per_image=4,
            eos_token_id=END,
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "mistral3-multimodal": (
        lambda: Mistral3Config(
            text_config=TINY | dict(model_type="mistral", num_hidden_layers=3, sliding_window=16),
            vision_config=VISION | dict(model_type="pixtral", patch_size=4, head_dim=8),
            eos_token_id=END,
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "llama4": (
        lambda: Llama4TextConfig(
            **LLAMA4 | dict(num_hidden_layers=5, num_key_value_heads=1),
            num_local_experts=3,
            interleave_moe_layer_step=2,
            attention_chunk_size=16,
            floor_scale=24,
            attn_scale=0.3,
            rope_parameters=LLAMA3 | dict(original_max_position_embeddings=32),
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "llama4-unnormalised": (
        lambda: Llama4TextConfig(
            **LLAMA4 | dict(num_hidden_layers=3),
            num_local_experts=2,
            num_experts_per_tok=2,
            moe_layers=[0],
            no_rope_layers=[1, 0, 1],
            attention_chunk_size=24,
            attn_temperature_tuning=False,
            use_qk_norm=False,
            attention_bias=True,
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "gpt-oss": (lambda: GptOssConfig(**GPT_OSS), torch.bfloat16, False, None),
    "gpt-oss-mxfp4": (
        lambda: GptOssConfig(**GPT_OSS | dict(hidden_size=64, num_hidden_layers=2)),
        torch.bfloat16,
        False,
        None,
    ),
    "phi3": (
        lambda: Phi3Config(
            **without(
                TINY | dict(num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1),
                "head_dim",
            ),
            original_max_position_embeddings=32,
            tie_word_embeddings=True,
            rope_parameters=LONGROPE,
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "phi3-window": (
        lambda: Phi3Config(
            **without(TINY | dict(num_hidden_layers=3), "head_dim"), sliding_window=16
        ),
        torch.bfloat16,
        True,
        None,
    ),
    "granite": (
        lambda: GraniteConfig(
            **without(TINY, "head_dim"),
            tie_word_embeddings=True,
            attention_bias=True,
            embedding_multiplier=6.0,
            residual_multiplier=0.6,
            attention_multiplier=0.4,
            logits_scaling=0.5,
        ),
        torch.bfloat16,
        True,
        None,
    ),
    "smollm3": (
        lambda: SmolLM3Config(**without(TINY | dict(num_hidden_layers=5), "head_dim")),
        torch.bfloat16,
        True,
        None,
    ),
    "smollm3-window": (
        lambda: SmolLM3Config(
            **without(TINY, "head_dim"),
            no_rope_layer_interval=2,
            use_sliding_window=True,
            sliding_window=16,
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "olmo2": (lambda: Olmo2Config(**without(TINY, "head_dim")), torch.float16, True, None),
    "olmo3": (
        lambda: Olmo3Config(
            **without(TINY, "head_dim"),
            sliding_window=12,
            rope_parameters=dict(
                full_attention=TINY_YARN,
                sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            ),
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "mixtral": (
        lambda: MixtralConfig(
            **TINY | dict(num_hidden_layers=2), num_local_experts=4, sliding_window=None
        ),
        torch.bfloat16,
        True,
        None,
    ),
    "glm": (
        lambda: GlmConfig(
            **TINY | dict(head_dim=8), attention_bias=True, rope_parameters=HALF_ROTARY
        ),
        torch.bfloat16,
        False,
        None,
    ),
    "glm4": (lambda: Glm4Config(**TINY, rope_parameters=HALF_ROTARY), torch.bfloat16, False, None),
    "seed-oss": (lambda: SeedOssConfig(**TINY), torch.bfloat16, False, None),
    "ernie4.5": (lambda: Ernie4_5Config(**TINY), torch.bfloat16, False, None),
    "exaone4": (
        lambda: Exaone4Config(**TINY | dict(head_dim=8), sliding_window=16),
        torch.bfloat16,
        False,
        None,
    ),
}
CASES |= LONG


# Checkpoints.


def initialise(model, dtype, generator):
    """Fills a model with random numbers, large enough for sharp attention and visible biases."""
    kind = model.config.model_type
    gemma = kind.startswith("gemma")
    scale = getattr(model.get_input_embeddings(), "scalar_embed_scale", None)
    scale = scale or getattr(model.config, "embedding_multiplier", 1.0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if gemma and name.endswith("model.norm.weight"):
            # Large, because embeddings are small.
            value = 4 + 0.2 * noise
        elif "norm" in name:
            # Gemma adds 1 to the weights of norms.
            value = (0 if gemma else 1) + 0.2 * noise
        elif name.endswith("bias"):
            value = 0.3 * noise
        elif name.endswith("sinks"):
            value = 1.0 + noise
        elif "embed_tokens" in name:
            # Small compared with the output of layers; else, tied embeddings repeat the last token.
            value = 0.3 * noise / scale
        else:
            # The experts of gpt-oss and Llama 4 are stored as [inputs, outputs].
            transposed = kind in ("gpt_oss", "llama4_text") and ".experts." in name
            value = 1.5 * noise / parameter.shape[-2 if transposed else -1] ** 0.5
        parameter.data.copy_(value.to(dtype))


def is_packed(name):
    """Returns True for the weights that MXFP4 checkpoints of gpt-oss store as blocks."""
    return name.endswith((".experts.gate_up_proj", ".experts.down_proj"))


def random_blocks(shape, generator):
    """Returns MXFP4 blocks and scales of the weights `[experts, inputs, outputs]`."""
    experts, inputs, outputs = shape
    rows = (experts, outputs, inputs // 32)
    blocks = torch.randint(0, 256, (*rows, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(122, 126, rows, generator=generator, dtype=torch.uint8)
    return blocks, scales


def pack_experts(model, generator):
    """Replaces the experts' weights by random MXFP4 numbers, and returns these as tensors."""
    tensors = {}
    for name, parameter in model.named_parameters():
        if is_packed(name):
            blocks, scales = random_blocks(parameter.shape, generator)
            wide = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            parameter.data.copy_(wide)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return tensors


def save_packed(folder, tensors):
    """Replaces the experts' weights in a checkpoint by their MXFP4 tensors."""
    path = folder / "model.safetensors"
    others = {name: tensor for name, tensor in load_file(path).items() if not is_packed(name)}
    save_file(others | tensors, path, {"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def as_version_4(folder):
    """Rewrites config.json as transformers 4 does.

    rope_theta and rope_scaling are at the top level, torch_dtype replaces dtype, and there are no
    layer_types.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope.pop("partial_rotary_factor", None)
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save(case, model, folder, packed):
    """Writes a checkpoint in the layout of users' checkpoints."""
    _, dtype, version_4, shard = CASES[case]
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard or "1GB")
    if packed:
        save_packed(folder, packed)
    if version_4:
        as_version_4(folder)


def model_class(config):
    return AutoModelForImageTextToText if hasattr(config, "text_config") else AutoModelForCausalLM


def load(folder, **changes):
    """Loads a checkpoint in float32, with other values of some keys of config.json."""
    config = AutoConfig.from_pretrained(folder, **changes)
    if hasattr(config, "quantization_config"):
        return load_packed(folder)
    return (
        model_class(config)
        .from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager")
        .eval()
    )


def load_packed(folder):
    """Loads a checkpoint with MXFP4 tensors; from_pretrained would need another package."""
    config = AutoConfig.from_pretrained(folder, attn_implementation="eager")
    del config.quantization_config
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_blocks")]:
        blocks, scales = tensors.pop(name), tensors.pop(name.replace("_blocks", "_scales"))
        wide = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        tensors[name.removesuffix("_blocks")] = wide
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model


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
    last = len(prompt) - 1
    return {
        "prompt": torch.tensor(prompt, dtype=torch.uint32),
        "decode_tokens": torch.tensor(decode, dtype=torch.uint32),
        "prefill": both[last].clone(),
        "decode": both[last + 1 :].clone(),
        "greedy": torch.tensor(greedy(model, prompt)[0], dtype=torch.uint32),
    }


def draw_tokens(seed, length):
    """Returns a prompt of this length, and further tokens."""
    generator = torch.Generator().manual_seed(1000 + seed)
    tokens = torch.randint(2, END, (length + DECODE,), generator=generator).tolist()
    return tokens[:length], tokens[length:]


def make(case, folder):
    make_config, dtype, _, _ = CASES[case]
    config = make_config()
    config._attn_implementation = "eager"
    for seed in range(1000):
        model = model_class(config).from_config(config, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(seed)
        initialise(model, dtype, generator)
        packed = pack_experts(model, generator) if case.endswith("-mxfp4") else {}
        prompt, decode = draw_tokens(seed, LONG_PROMPT if case in LONG else PROMPT)
        continuation, lead = greedy(model, prompt, MARGIN)
        variety = len(set(continuation))
        if lead >= MARGIN and variety >= VARIETY and END not in continuation:
            save(case, model, folder, packed)
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
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases (default: all)")
    parser.add_argument(
        "--check", action="store_true", help="compare with the existing files, and write nothing"
    )
    args = parser.parse_args()
    cases = args.cases or list(CASES)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if args.check:
        return 0 if all([check(case, args.out / case) for case in cases]) else 1
    for case in cases:
        make(case, args.out / case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
