#!/usr/bin/env python3
"""Time one decode step of attention: PyTorch, llama.cpp and this library, in turn in one process.

    python3 tools/bench_peers.py --install
    .venv-peers/bin/python tools/bench_peers.py --json peers.json

The install makes .venv-peers with torch, builds the ggml of llama.cpp there, and builds this library
into target/peers; it needs cargo and a C compiler. Where the package index has torch only with CUDA,
that is several GB; it runs on the CPU all the same.

All entries get the same queries, keys and values, in their precision: synthetic heads that look like
those of a model. Batch 1, one query token. Keys and values of several layers, 1 GiB at least, are gone
over in turn, and before every burst of calls 1 GiB of something else is read: they come from memory.
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
    """argparse's type for --ours."""
    try:
        return choices(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error))


def peer_choices(text: str) -> list[Choice]:
    """argparse's type for --peers."""
    found, known = our_choices(text), [peer.partition("@")[0] for peer in PEERS]
    for choice in found:
        if choice.name not in known or choice.settings:
            raise argparse.ArgumentTypeError(f"{text}: expected one of {', '.join(known)}")
    return found


def counts(text: str) -> list[int]:
    """argparse's type for whole numbers between commas."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return found


def parse_arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--install", action="store_true", help="get and build everything, and stop")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="compilers at a time, for ggml"
    )
    parser.add_argument("--tokens", type=counts, default=[32768, 131072], help="between commas")
    parser.add_argument("--threads", type=counts, default=[1, 2], help="between commas")
    parser.add_argument("--query-heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument(
        "--kind", default="typical", help="of synthetic heads, as `vattention synth --kind`"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ours",
        nargs="*",
        type=our_choices,
        metavar="FILE[+KEY=VALUE...][@DTYPE,...]",
        default=[choices(text) for text in OURS],
        help=f"our pipelines (default {' '.join(OURS)})",
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        type=peer_choices,
        metavar="NAME[@DTYPE,...]",
        default=[choices(text) for text in PEERS],
        help=f"the others (default {' '.join(PEERS)})",
    )
    parser.add_argument("--rounds", type=int, default=9, help="timed turns of each entry")
    parser.add_argument(
        "--burst", type=float, default=0.1, help="seconds of one entry's turn, about"
    )
    parser.add_argument(
        "--gib", type=float, default=1.0, help="keys and values to go over, at least"
    )
    parser.add_argument(
        "--no-build", action="store_true", help="do not look whether our library is up to date"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything that was measured"
    )
    args = parser.parse_args()
    args.ours, args.peers = sum(args.ours, []), sum(args.peers, [])
    if min(args.rounds, args.jobs, args.query_heads, args.kv_heads, args.head_dim) < 1:
        parser.error("expected at least 1 round, job, head and number in a head")
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
