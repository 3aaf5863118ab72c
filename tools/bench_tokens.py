#!/usr/bin/env python3
"""Time a decoded token: this program and llama.cpp, with the same GGUF file and contexts.

    python3 tools/bench_prefill.py --install
    python3 tools/get_smollm2.py && python3 tools/get_prose.py && cargo build --release
    .venv-prefill/bin/python tools/bench_tokens.py --rounds 3

llama.cpp uses flash attention with keys and values in f16, bf16 or 8 bits; ratios are relative to
its fastest type. This program stores keys and values in bf16. Contenders alternate in each round;
the table has medians of the rounds' medians, and medians of the ratios within rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench_prefill import (
    HOW,
    MODEL,
    ROOT,
    TEXT,
    Vocabulary,
    counts,
    expect_model,
    note,
    positive,
    read_text,
)
from fetching import Failed

PIPELINES = [ROOT / "configs" / "dense.toml", ROOT / "configs" / "priority.toml"]
CACHES = {"f16": 1, "bf16": 30, "q8_0": 8}


def parse_arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--model", type=Path, default=MODEL, metavar="FILE", help="the GGUF file")
    parser.add_argument(
        "--text",
        type=Path,
        default=TEXT,
        metavar="FILE",
        help="UTF-8 text to cut the contexts from",
    )
    parser.add_argument(
        "--vattention",
        type=Path,
        default=ROOT / "target" / "release" / "vattention",
        metavar="FILE",
    )
    parser.add_argument("--pipelines", type=Path, nargs="+", default=PIPELINES, metavar="FILE")
    parser.add_argument(
        "--contexts",
        type=counts,
        default=[16, 2048, 6632],
        help="tokens of the contexts, separated by commas",
    )
    parser.add_argument("--tokens", type=positive, default=33, help="tokens to decode per round")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=2)
    return parser.parse_args()


class Ours:
    """Contender `vattention generate`, whose report has the median time of a step."""

    def __init__(self, args: argparse.Namespace, pipeline: Path) -> None:
        self.name = pipeline.stem
        self.command = [
            args.vattention,
            "generate",
            "--quiet",
            "--model",
            args.model,
            "--pipeline",
            pipeline,
            "--dtype",
            "bf16",
            "--ignore-eos",
            "--tokens",
            args.tokens,
        ]
        self.environment = {**os.environ, "RAYON_NUM_THREADS": str(args.threads)}

    def time_token(self, prompt) -> float:
        with tempfile.TemporaryDirectory() as folder:
            text, report = Path(folder) / "context.txt", Path(folder) / "report.json"
            text.write_bytes(prompt.text.encode())
            command = [str(part) for part in [*self.command, "--context", text, "--json", report]]
            done = subprocess.run(command, env=self.environment, capture_output=True)
            if done.returncode != 0:
                raise Failed(
                    f"{command[0]} generate failed:\n{done.stderr.decode(errors='replace').strip()}"
                )
            found = json.loads(report.read_text())
        count = found["tokens"]["context"]
        if count != len(prompt.tokens):
            raise Failed(f"{self.name} read {count} tokens, expected {len(prompt.tokens)}")
        return found["steps"]["median_seconds"]


class LlamaCpp:
    """Contender llama.cpp with one type of cache, which keeps a context for all rounds."""

    def __init__(self, args: argparse.Namespace, cache: str) -> None:
        import llama_cpp

        self.name, self.tokens, self.read = f"llama.cpp {cache}", args.tokens, []
        sizes = {"n_ctx": max(args.contexts) + args.tokens + 1, "n_batch": 512, "n_ubatch": 512}
        threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
        types = {"type_k": CACHES[cache], "type_v": CACHES[cache]}
        self.llm = llama_cpp.Llama(
            str(args.model), **sizes, **threads, **types, flash_attn=True, verbose=False
        )

    def time_token(self, prompt) -> float:
        if self.read != prompt.tokens:
            self.llm.reset()
            self.llm.eval(prompt.tokens)
            self.read = prompt.tokens
        times = []
        for token in prompt.tokens[-1:] * self.tokens:
            begin = time.perf_counter()
            self.llm.eval([token])
            times.append(time.perf_counter() - begin)
        # The next eval removes the decoded tokens.
        self.llm.n_tokens = len(prompt.tokens)
        return median(times)


def measure(contenders: list, prompt, rounds: int) -> dict[str, list[float]]:
    times = {contender.name: [] for contender in contenders}
    for turn in range(rounds):
        for i in range(len(contenders)):
            contender = contenders[(i + turn) % len(contenders)]
            note(f"{len(prompt.tokens)} tokens, round {turn + 1} of {rounds}: {contender.name}")
            times[contender.name].append(contender.time_token(prompt))
    return times


def row(context: int, times: dict[str, list[float]]) -> list[str]:
    """Returns cells: milliseconds of all, and the speedups over the fastest llama.cpp."""
    theirs = min((times[name] for name in times if name.startswith("llama.cpp")), key=median)
    ours = [name for name in times if not name.startswith("llama.cpp")]
    ratios = [median(a / b for a, b in zip(theirs, times[name])) for name in ours]
    return [
        str(context),
        *(f"{1000 * median(found):.2f}" for found in times.values()),
        *(f"{ratio:.2f}" for ratio in ratios),
    ]


def run(args: argparse.Namespace) -> None:
    try:
        import llama_cpp  # noqa: F401
    except ImportError:
        raise Failed(f"llama_cpp is not installed: {HOW}")
    expect_model(args.model)
    prompts = Vocabulary(args.model).prompts(read_text(args.text), args.contexts)
    contenders = [
        *(Ours(args, pipeline) for pipeline in args.pipelines),
        *(LlamaCpp(args, cache) for cache in CACHES),
    ]
    ours = [f"speedup of {pipeline.stem}" for pipeline in args.pipelines]
    header = ["context", *(contender.name for contender in contenders), *ours]
    print(
        f"{args.model.name}, {args.threads} threads, "
        f"{args.rounds} rounds of {args.tokens} tokens, ms per token"
    )
    print(f"| {' | '.join(header)} |\n|{'--:|' * len(header)}")
    for prompt in prompts:
        cells = row(len(prompt.tokens), measure(contenders, prompt, args.rounds))
        note("")
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> int:
    args = parse_arguments()
    try:
        run(args)
    except Failed as error:
        print(f"bench_tokens: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
