"""Small models of `transformers`, and generation with them."""

import importlib
import inspect
import os

import pytest

needed = (
    importlib.import_module
    if "VATTENTION_REQUIRE_TRANSFORMERS" in os.environ
    else pytest.importorskip
)
torch = needed("torch")
transformers = needed("transformers")
vt = needed("vattention.transformers")

CACHE = (
    "cache"
    if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters
    else "past_key_values"
)
"""Keyword argument of a cache; the second is its name before transformers 5.24."""

TOLERANCE = 1e-4
torch.set_num_threads(1)  # Small models wait for threads more than they gain.

SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "eos_token_id": None,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
MODELS = {
    "llama": lambda **more: transformers.LlamaConfig(**SIZES, **more),
    "qwen3": lambda **more: transformers.Qwen3Config(**SIZES, **more),
    "mistral": lambda **more: transformers.MistralConfig(**SIZES, sliding_window=64, **more),
    "gemma3": lambda **more: transformers.Gemma3TextConfig(
        **SIZES, sliding_window=8, query_pre_attn_scalar=10, **more
    ),
    "gemma2": lambda **more: transformers.Gemma2Config(
        **SIZES, sliding_window=8, query_pre_attn_scalar=10, attn_logit_softcapping=2.0, **more
    ),
    "gpt_oss": lambda **more: transformers.GptOssConfig(
        **SIZES, sliding_window=8, num_local_experts=2, num_experts_per_tok=1, **more
    ),
}

FULL_LAYERS = {"gemma3": [5], "gemma2": [1, 3, 5], "gpt_oss": [1, 3, 5]}
"""Layers of full attention of the models that also have layers with a sliding window."""


def checkpoint(name="llama", seed=0, **more):
    """Makes a random model whose attention is far from uniform."""
    torch.manual_seed(seed)
    config = MODELS[name](**more)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="vattention"
    ).eval()
    for place, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data *= 4
        if place.endswith("sinks"):
            parameter.data = torch.linspace(-2, 4, len(parameter))
    return model


def prompt(*, tokens=20, padding=(6, 0), seed=1):
    """Returns random token ids and a mask; `padding` has the left padding of each row."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 101, (len(padding), tokens), generator=generator)
    mask = torch.ones_like(ids)
    for row, hidden in enumerate(padding):
        mask[row, :hidden] = 0
    return {"input_ids": ids, "attention_mask": mask}


def expected(model, inputs, **options):
    """Returns the output of `generate` with the attention of `transformers`."""
    model.set_attn_implementation("eager")
    output = generated(model, inputs, **options)
    model.set_attn_implementation("vattention")
    return output


def generated(model, inputs, cache=None, seed=2, **options):
    """Returns the output of `generate` with its logits, by default with transformers' own cache."""
    torch.manual_seed(seed)
    options = {"max_new_tokens": 16, "do_sample": False, **options}
    if cache is not None:
        options[CACHE] = cache
    return model.generate(**inputs, output_logits=True, return_dict_in_generate=True, **options)


def assert_same(found, expected):
    assert found.sequences.tolist() == expected.sequences.tolist()
    for step, (logits, wanted) in enumerate(zip(found.logits, expected.logits, strict=True)):
        assert (logits - wanted).abs().max() < TOLERANCE, f"step {step}"
