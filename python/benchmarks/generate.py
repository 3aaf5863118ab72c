#!/usr/bin/env python3
"""Benchmark of decoding through `model.generate()`: torch's SDPA and pipelines, at several lengths.

    python benchmarks/generate.py smollm2      # download it with tools/get_smollm2.py
    python benchmarks/generate.py random-1b    # a Llama of 1.2 billion random parameters

One prompt is read once; its keys and values, repeated up to each length, fill every cache. In each
round every variant generates a few tokens, so that other load on the machine slows all variants
alike. Times are medians over rounds. `attention` is the time per token in cache and attention
function, `token` is the time of all of `generate`. Ratios are relative to `sdpa`; a larger ratio is
faster. The last line is the overhead of a layer at each step, measured with one head over few
tokens.

Only times are meaningful: the repeated keys are not those of a longer text, and the new tokens may
have positions beyond the model's context.
"""

import argparse
import os
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
)

import vattention.transformers as vt
from vattention import Pipeline
from vattention.transformers._function import Call

ROOT = Path(__file__).resolve().parents[2]
SMOLLM2 = ROOT / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
VARIANTS = {
    "sdpa": None,
    "dense": "dense",
    "priority": "priority",
    "streaming-llm": "streaming-llm",
}


class Clock:
    """Sum of the time spent in caches and attention functions, in seconds."""

    def __init__(self):
        self.seconds = 0.0

    def timed(self, function):
        def run(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begin

        return run


CLOCK = Clock()


def load(name):
    """Returns a model, and the tokens of a prompt."""
    if name == "smollm2":
        options = {
            "gguf_file": SMOLLM2.name,
            "dtype": torch.float32,
            "attn_implementation": vt.NAME,
        }
        model = AutoModelForCausalLM.from_pretrained(SMOLLM2.parent, **options)
        text = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
        tokenizer = AutoTokenizer.from_pretrained(SMOLLM2.parent, gguf_file=SMOLLM2.name)
        return model.eval(), tokenizer(text, return_tensors="pt", truncation=True, max_length=8192)[
            "input_ids"
        ]
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "vocab_size": 128256,
    }
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    config = LlamaConfig(**sizes, **heads, max_position_embeddings=65536, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=vt.NAME, dtype=torch.float32
    )
    return model.eval(), torch.randint(0, 128256, (1, 1024))


@torch.no_grad()
def read(model, prompt):
    """Returns keys and values of a prompt for each layer, `[1, kv_heads, tokens, head_dim]`."""
    cache = DynamicCache(config=model.config)
    model(input_ids=prompt, cache=cache, logits_to_keep=1)
    return [(layer.keys, layer.values) for layer in cache.layers]


def repeated(tensor, length):
    times = -(-length // tensor.shape[2])
    return tensor.repeat(1, 1, times, 1)[:, :, :length].contiguous()


def filled(model, rows, length, pipeline, threads):
    """Returns a cache filled with the first `length` of the repeated rows."""
    if pipeline is None:
        cache = DynamicCache(config=model.config)
        for number, (keys, values) in enumerate(rows):
            cache.update(repeated(keys, length), repeated(values, length), number)
    else:
        cache = vt.VAttentionCache(
            model.config, ROOT / "configs" / f"{pipeline}.toml", threads=threads
        )
        for layer, block, (keys, values) in zip(
            cache.layers, model.model.layers, rows, strict=True
        ):
            module = block.self_attn
            query = torch.empty(1, module.config.num_attention_heads, 1, module.head_dim)
            layer.begin(Call(module, query, keys, values, None, {"scaling": module.scaling}))
            layer.sequences[0].append(repeated(keys, length)[0], repeated(values, length)[0])
            layer.length, layer.prompt = length, None
    cache.update = CLOCK.timed(cache.update)
    return cache


def generate(model, cache, tokens):
    """Returns the seconds per token, and the seconds of its attention."""
    inputs = torch.ones(1, cache.get_seq_length() + 1, dtype=torch.long)
    CLOCK.seconds, begin = 0.0, time.perf_counter()
    options = {
        "max_new_tokens": tokens,
        "min_new_tokens": tokens,
        "do_sample": False,
        "pad_token_id": 0,
    }
    model.generate(inputs, attention_mask=torch.ones_like(inputs), cache=cache, **options)
    return (time.perf_counter() - begin) / tokens, CLOCK.seconds / tokens


def measure(model, rows, length, args):
    caches = {
        name: filled(model, rows, length, VARIANTS[name], args.threads)
        for name in args.variants.split(",")
    }
    times = {name: [] for name in caches}
    for turn in range(args.rounds + 1):
        for name, cache in caches.items():
            seconds = generate(model, cache, args.tokens)
            if turn > 0:  # The first round warms up.
                times[name].append(seconds)
    rows = {}
    for name, measured in times.items():
        token, attention = (statistics.median(part) for part in zip(*measured, strict=True))
        report = [] if name == "sdpa" else caches[name].report()
        read = statistics.fmean(entry["density"] for entry in report) if report else 1.0
        rows[name] = (read, attention, token)
    return rows


def overhead():
    """Measures a layer's step in microseconds: cache, attention function and report."""
    config = LlamaConfig(
        num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=32
    )
    config._attn_implementation = vt.NAME
    cache = vt.VAttentionCache(config, Pipeline.parse(""), threads=1)
    module, taken = torch.nn.Module(), []
    for _ in range(2000):
        row = torch.randn(1, 1, 1, 32)
        begin = time.perf_counter()
        keys, values = cache.update(row, row.clone(), 0)
        output, _ = vt.attention(module, row, keys, values, None, scaling=1.0)
        output.reshape(1, 1, -1).contiguous()
        taken.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(taken)


def cpu():
    info = Path("/proc/cpuinfo")
    names = (
        [
            line.split(":")[1].strip()
            for line in info.read_text().splitlines()
            if "model name" in line
        ]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=["smollm2", "random-1b"])
    parser.add_argument(
        "--lengths", default="2048,8192,32768", help="tokens in the cache, separated by commas"
    )
    parser.add_argument(
        "--variants",
        default=",".join(VARIANTS),
        help=f"sdpa and other variants (default {','.join(VARIANTS)})",
    )
    parser.add_argument(
        "--tokens", type=int, default=8, help="tokens to generate in each round (default 8)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default 5)")
    parser.add_argument(
        "--threads",
        type=int,
        default=os.cpu_count(),
        help="threads of torch and of the pipelines (default: all cores)",
    )
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    AttentionInterface.register(vt.NAME, CLOCK.timed(vt.attention))
    model, prompt = load(args.model)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(
        f"{args.model}, f32, {args.threads} threads, {os.cpu_count()} cores of {cpu()}, "
        f"{versions}; prompt of {prompt.shape[1]} tokens",
        flush=True,
    )
    rows = read(model, prompt)
    columns = "tokens | variant | read | attention, ms | ratio | token, ms | ratio"
    print(f"| {columns} | attention's share |")
    print("|--:|---|--:|--:|--:|--:|--:|--:|")
    for length in [int(length) for length in args.lengths.split(",")]:
        measured = measure(model, rows, length, args)
        for name, (read_share, attention, token) in measured.items():
            _, base_attention, base_token = measured["sdpa"]
            cells = [
                length,
                name,
                f"{read_share:.1%}",
                f"{1e3 * attention:.1f}",
                f"{base_attention / attention:.2f}",
            ]
            cells += [f"{1e3 * token:.1f}", f"{base_token / token:.2f}", f"{attention / token:.0%}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    print(f"overhead of one layer's step: {overhead():.0f} microseconds")


if __name__ == "__main__":
    main()
