#!/usr/bin/env python3
"""Time reading a prompt: this program, Hugging Face transformers and llama.cpp, on one GGUF file.

    python3 tools/bench_prefill.py --install
    python3 tools/get_smollm2.py && python3 tools/get_prose.py && cargo build --release
    .venv-prefill/bin/python tools/bench_prefill.py --json prefill.json

--install makes .venv-prefill; it needs a C++ compiler, because llama-cpp-python is built from
source. If the package index has torch only with CUDA, the download is several GB, but everything
runs on the CPU.

All contenders read the same tokens, one after the other in each round. The others stay loaded;
this program starts for every reading, and reports the time of reading without loading.
transformers dequantises the weights; llama.cpp computes with the quantised ones, in batches of 512
tokens, with the flash attention of its CPU backend or without.

The longest prompt has 8191 tokens, so that one token of the answer fits the model's 8192.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from fetching import Failed
from prefill import table
from prefill.contenders import Ours, Peer, Prompt
from prefill.prompts import cut
from prefill.table import OURS, Timed
from prefill.worker import CONTENDERS

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-prefill"
HOW = f"python3 tools/bench_prefill.py --install, then run it with {VENV.name}/bin/python"
MODEL = ROOT / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = ROOT / "texts" / "kjv-haystack.txt"
PACKAGES = {"torch": ["torch", "transformers", "gguf", "accelerate"], "llama.cpp": ["llama_cpp"]}


def counts(text: str) -> list[int]:
    """Parses whole numbers, 1 or more, separated by commas."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def positive(text: str) -> int:
    """Parses a number, 1 or more."""
    return counts(text)[0] if "," not in text else int(text)


def names(text: str) -> list[str]:
    """Parses the names of --contenders."""
    chosen, known = text.split(","), [OURS, *CONTENDERS]
    if not set(chosen) <= set(known) or len(set(chosen)) < len(chosen):
        raise argparse.ArgumentTypeError(f"{text}: expected different ones of {', '.join(known)}")
    return chosen


def parse_arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--install", action="store_true", help=f"make {VENV.name} only")
    parser.add_argument("--model", type=Path, default=MODEL, metavar="FILE", help="the GGUF file")
    parser.add_argument(
        "--our-model", type=Path, metavar="PATH", help="another model for this program"
    )
    parser.add_argument(
        "--text", type=Path, default=TEXT, metavar="FILE", help="UTF-8 text to cut the prompts from"
    )
    parser.add_argument(
        "--vattention",
        type=Path,
        default=ROOT / "target" / "release" / "vattention",
        metavar="FILE",
        help="this program",
    )
    parser.add_argument(
        "--pipeline", type=Path, default=ROOT / "configs" / "dense.toml", metavar="FILE"
    )
    parser.add_argument(
        "--contenders",
        type=names,
        default=[OURS, "torch-f32", "llama.cpp", "llama.cpp-flash"],
        metavar="NAMES",
        help=f"separated by commas: {', '.join([OURS, *CONTENDERS])}",
    )
    parser.add_argument(
        "--tokens", type=counts, default=[1024, 4096, 8191], help="lengths, separated by commas"
    )
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    return parser.parse_args()


def install() -> None:
    requirements = ROOT / "tools" / "prefill" / "requirements.txt"
    pip = [VENV / "bin" / "pip", "install", "--quiet", "-r", requirements]
    for command in [[sys.executable, "-m", "venv", VENV], pip]:
        if subprocess.run([str(part) for part in command]).returncode != 0:
            raise Failed(f"{command[0]} failed; expected a network, and a C++ compiler")


# Requirements.


def expect_packages(contenders: list[str]) -> None:
    """Checks that packages are installed; llama.cpp is always needed, for its tokenizer."""
    used = {"llama.cpp", *(name.partition("-")[0] for name in contenders)}
    wanted = [package for name in used for package in PACKAGES.get(name, [])]
    missing = [package for package in wanted if importlib.util.find_spec(package) is None]
    if missing:
        raise Failed(f"{', '.join(sorted(missing))} not installed: {HOW}")


def expect_model(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise Failed(
            f"--model {path}: {error.strerror}; "
            "expected a GGUF file (tools/get_smollm2.py downloads one)"
        )
    if start != b"GGUF":
        raise Failed(f"--model {path}: begins with {start!r}, expected a GGUF file")


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise Failed(
            f"--text {path}: {error.strerror}; expected a text (tools/get_prose.py makes some)"
        )
    except UnicodeDecodeError as error:
        raise Failed(f"--text {path}: {error}; expected UTF-8")


class Vocabulary:
    """Tokenizer of the model, by llama.cpp."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        try:
            self.llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        except ValueError as error:
            raise Failed(f"--model {path}: {error}")

    def encode(self, text: str) -> list[int]:
        return self.llm.tokenize(text.encode(), add_bos=True, special=True)

    def decode(self, tokens: list[int]) -> bytes:
        return self.llm.detokenize(tokens, special=True)

    def prompts(self, text: str, lengths: list[int]) -> list[Prompt]:
        return [cut(text, length, self.encode, self.decode) for length in lengths]


# The rounds.


def start(args: argparse.Namespace) -> list[Ours | Peer]:
    """Loads all contenders."""
    started = []
    try:
        for name in args.contenders:
            note(f"loading {name}")
            if name == OURS:
                model = args.our_model or args.model
                started.append(Ours(args.vattention, model, args.pipeline, args.threads))
            else:
                started.append(Peer(name, args.model, args.threads, max(args.tokens)))
        return started
    except BaseException:
        stop(started)
        raise


def stop(contenders: list[Ours | Peer]) -> None:
    for contender in contenders:
        contender.close()


def measure(
    contenders: list[Ours | Peer], prompts: list[Prompt], rounds: int, vocabulary: Vocabulary
) -> list[Timed]:
    """Times every contender once per round and prompt; another contender begins each round."""
    results = []
    for contender in contenders:
        if isinstance(contender, Peer):
            contender.warm_up(prompts[0])
    for prompt in prompts:
        timed = [Timed(contender.name, len(prompt.tokens)) for contender in contenders]
        for turn in range(rounds):
            for i in [(place + turn) % len(contenders) for place in range(len(contenders))]:
                name = contenders[i].name
                note(f"{len(prompt.tokens)} tokens, round {turn + 1} of {rounds}: {name}")
                reading, answer = contenders[i].read(prompt)
                timed[i].rounds.append(reading)
                if not isinstance(answer, str):
                    answer = vocabulary.decode([answer]).decode(errors="replace")
                timed[i].answer = answer
        results += timed
    return results


def note(text: str) -> None:
    """Prints progress in the last line of stderr, if it is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> None:
    expect_packages(args.contenders)
    expect_model(args.model)
    if args.json and not args.json.resolve().parent.is_dir():
        raise Failed(f"--json {args.json}: expected a file in an existing folder")
    text = read_text(args.text)
    vocabulary = Vocabulary(args.model)
    prompts = vocabulary.prompts(text, args.tokens)
    contenders = start(args)
    try:
        results = measure(contenders, prompts, args.rounds, vocabulary)
    finally:
        stop(contenders)
    note("")
    print(f"{args.model.name}, {args.text.name}, {args.threads} threads, {args.rounds} rounds")
    print(f"{table.markdown(results)}\n{table.LEGEND}")
    if args.json:
        facts = {"model": args.model.name, "text": args.text.name, "threads": args.threads}
        facts |= {
            "machine": platform.machine(),
            "processors": os.cpu_count(),
            "packages": versions(),
        }
        document = {**facts, "results": [timed.summary() for timed in results]}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Returns the installed versions of the packages in requirements.txt."""
    from importlib import metadata

    pinned = [
        line.partition("==")[0]
        for line in (ROOT / "tools/prefill/requirements.txt").read_text().splitlines()
    ]
    found = {}
    for name in pinned:
        try:
            found[name] = metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError):
            pass
    return found


def main() -> int:
    args = parse_arguments()
    try:
        install() if args.install else run(args)
    except Failed as error:
        print(f"bench_prefill: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
