#!/usr/bin/env python3
"""Time one decode step of attention: PyTorch, llama.cpp and this library, in one process.

    python3 tools/bench_peers.py --install
    .venv-peers/bin/python tools/bench_peers.py --json peers.json

--install makes .venv-peers with torch, builds the ggml of llama.cpp there, and builds this library
into target/peers; it needs cargo and a C compiler. If the package index has torch only with CUDA,
the download is several GB, but everything runs on the CPU.

All entries get the same queries, keys and values in their precision: synthetic heads that resemble
those of a model, with batch 1 and one query token. So that keys and values come from memory, calls
go through several layers of at least 1 GiB, and every burst of calls follows a read of 1 GiB of
other data.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

from peers import install
from peers.choice import Choice, choices

PEERS = ["torch-sdpa@bf16,f32", "torch-matmul@bf16,f32", "llama.cpp@f16,bf16"]
OURS = ["configs/dense.toml@bf16,f16,f32", "configs/hash-hybrid.toml@bf16"]


def our_choices(text: str) -> list[Choice]:
    """Parses an item of --ours."""
    try:
        return choices(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error))


def peer_choices(text: str) -> list[Choice]:
    """Parses an item of --peers."""
    chosen, names = our_choices(text), [peer.partition("@")[0] for peer in PEERS]
    for choice in chosen:
        if choice.name not in names or choice.settings:
            raise argparse.ArgumentTypeError(f"{text}: expected one of {', '.join(names)}")
    return chosen


def counts(text: str) -> list[int]:
    """Parses whole numbers, 1 or more, separated by commas."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def parse_arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--install", action="store_true", help="install and build everything, only")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="parallel compilers, for ggml"
    )
    parser.add_argument(
        "--tokens", type=counts, default=[32768, 131072], help="numbers separated by commas"
    )
    parser.add_argument(
        "--threads", type=counts, default=[1, 2], help="numbers separated by commas"
    )
    parser.add_argument("--query-heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument(
        "--kind", default="typical", help="kind of heads, as in `vattention synth --kind`"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ours",
        nargs="*",
        type=our_choices,
        metavar="FILE[+KEY=VALUE...][@DTYPE,...]",
        default=[choices(text) for text in OURS],
        help=f"pipelines of this library (default {' '.join(OURS)})",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        type=peer_choices,
        metavar="NAME[@DTYPE,...]",
        default=[choices(text) for text in PEERS],
        help=f"other implementations (default {' '.join(PEERS)})",
    )
    parser.add_argument("--rounds", type=int, default=9, help="number of timed rounds")
    parser.add_argument(
        "--burst", type=float, default=0.1, help="approximate seconds per entry and round"
    )
    parser.add_argument(
        "--gib", type=float, default=1.0, help="smallest total size of keys and values, in GiB"
    )
    parser.add_argument("--no-build", action="store_true", help="do not rebuild this library")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    args = parser.parse_args()
    args.ours, args.peers = sum(args.ours, []), sum(args.peers, [])
    if min(args.rounds, args.jobs, args.query_heads, args.kv_heads, args.head_dim) < 1:
        parser.error(
            "expected 1 or more as --rounds, --jobs, --query-heads, --kv-heads, --head-dim"
        )
    return args


def main() -> int:
    args = parse_arguments()
    try:
        if args.install:
            install.install(args.jobs)
        else:
            importlib.import_module("peers.bench").run(args)
    except install.Failed as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        where = f"{install.VENV.name}/bin/python"
        print(f"bench_peers: {missing}; {install.HOW}, then run it with {where}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
