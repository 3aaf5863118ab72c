#!/usr/bin/env python3
"""Time other libraries on a GPU beside the kernels that `gather` measures, and check the goals.

    gather --json gather.json
    python3 tools/gpu_peers.py gather.json --json gpu-peers.json

The peers are PyTorch's fused attention (flash, cuDNN), FlashInfer's decode over pages of 16 tokens
and over lists of rows, top-k of both libraries, and a straightforward vAttention in PyTorch. All
get the same queries, keys and values. The output of each is compared with attention in f64 before
and after it is timed. Peers that are missing, fail or are wrong are listed with the reason. PyTorch
is required, FlashInfer is optional.
"""

import argparse
import importlib
import sys
from pathlib import Path

from gpu_peers import ours
from gpu_peers.shape import shapes


def shape_list(text: str) -> list:
    """Parses --shapes."""
    try:
        return shapes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error))


def seconds(text: str) -> float:
    """Parses a time limit."""
    number = float(text)
    if not 0 <= number <= 3600:
        raise ValueError
    return number


def parse_arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument(
        "gather", type=Path, nargs="?", metavar="FILE", help="file that `gather --json` wrote"
    )
    parser.add_argument(
        "--shapes", type=shape_list, metavar="BATCHxTOKENS,...", help="default: those of FILE"
    )
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu is for tests only (default cuda)",
    )
    parser.add_argument(
        "--seconds", type=seconds, default=0.3, help="approximate time to measure each entry"
    )
    parser.add_argument(
        "--entry-limit", type=seconds, default=40.0, help="time limit of an entry, in seconds"
    )
    parser.add_argument(
        "--limit", type=seconds, default=180.0, help="time limit of all entries, in seconds"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="only let FlashInfer compile its kernels"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    args = parser.parse_args()
    if not args.gather and not args.prepare:
        parser.error("expected the file that `gather --json` wrote")
    if args.json and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: expected a file in an existing folder")
    return args


def main() -> int:
    args = parse_arguments()
    try:
        found = None if args.prepare else ours.read(args.gather)
        torch = importlib.import_module("torch")
        if args.device == "cuda" and not torch.cuda.is_available():
            raise ours.BadFile("PyTorch found no GPU; use --device cpu to run without one")
        bench = importlib.import_module("gpu_peers.bench")
        bench.prepare(args) if args.prepare else bench.run(args, found)
    except (ours.BadFile, ModuleNotFoundError) as error:
        print(f"gpu_peers: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
