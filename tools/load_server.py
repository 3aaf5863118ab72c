#!/usr/bin/env python3
"""Load test of the server: many clients, a third of whose requests disconnect.

    cargo build --release && python3 tools/load_server.py --seconds 60

The server runs on the loopback interface with the model of `models/recall`, once without a prefix
cache and once with a small one. The test checks that no request fails, that texts equal those of
single requests, that memory returns to its size before the load (without a cache), and that the
cache keeps its limit. VATTENTION is the path of the command, if it is elsewhere.
"""

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass, field

from serving.http_client import complete
from serving.needles import Needle
from serving.server import Server, recall_options

CACHE_BYTES = 16 << 20
MEMORY_GROWTH = 1.05


def parse_arguments() -> argparse.Namespace:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--seconds", type=float, default=60, help="duration of each load")
    parser.add_argument("--warm-up", type=float, default=30, help="seconds of load before each")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def make_requests() -> list[dict]:
    """Returns requests with prompts of 100 to 3,000 tokens and answers of 4 to 64."""
    draw, requests = random.Random(0), []
    for index in range(24):
        needle = Needle(index, sentences=draw.choice([10, 40, 150, 500]))
        body = {"model": draw.choice(["recall@dense", "recall@priority"]), "prompt": needle.prompt}
        body |= {"max_tokens": draw.choice([4, 16, 64]), "seed": index, "temperature": 1}
        requests.append({**body, "ignore_eos": True})
    return requests


@dataclass
class LoadResult:
    """Counts of a load, and messages about faults."""

    finished: int = 0
    disconnected: int = 0
    tokens: int = 0
    faults: list[str] = field(default_factory=list)


async def run_client(
    address: str, requests: list[dict], texts: list[str], end: float, seed: int, result: LoadResult
) -> None:
    draw = random.Random(seed)
    while time.monotonic() < end:
        index = draw.randrange(len(requests))
        parts = draw.randrange(6) if draw.random() < 1 / 3 else None
        try:
            answer = await complete(address, requests[index], parts)
        except (OSError, EOFError, ValueError) as error:
            result.faults.append(f"request {index}: {error!r}")
            continue
        if answer is None:
            result.disconnected += 1
        elif answer.status != 200 or answer.body or answer.usage is None:
            result.faults.append(f"request {index}: {answer.status} {answer.body}")
        elif answer.text != texts[index]:
            alone = f"{answer.text!r}, alone {texts[index]!r}"
            result.faults.append(f"request {index}: the text is {alone}")
        else:
            result.finished += 1
            result.tokens += answer.usage["completion_tokens"]


async def run_load(
    server: Server, requests: list[dict], texts: list[str], seconds: float, args: argparse.Namespace
) -> tuple[LoadResult, float]:
    """Returns the result of a load, and the largest size of the cache during it."""
    result, end, largest = LoadResult(), time.monotonic() + seconds, 0.0
    seeds = range(args.seed * args.clients, (args.seed + 1) * args.clients)
    clients = [
        asyncio.create_task(run_client(server.address, requests, texts, end, seed, result))
        for seed in seeds
    ]
    running = asyncio.gather(*clients)
    while not running.done():
        metrics = await asyncio.to_thread(server.read_metrics)
        largest = max(largest, metrics["vattention_cache_bytes"])
        await asyncio.wait([running], timeout=0.25)
    await running
    await wait_until_idle(server)
    return result, largest


async def wait_until_idle(server: Server) -> None:
    """Waits until all sequences have ended, those of disconnected clients included."""
    for _ in range(600):
        metrics = await asyncio.to_thread(server.read_metrics)
        if metrics["vattention_running"] == metrics["vattention_queued"] == 0:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("sequences are still running a minute after the last client left")


async def measure_idle_bytes(server: Server) -> int:
    """Returns the resident memory when the idle server has returned freed memory."""
    smallest = None
    while True:
        await asyncio.sleep(5)
        size = server.read_resident_bytes()
        if smallest is not None and size >= smallest:
            return smallest
        smallest = size


async def check_server(args: argparse.Namespace, cache_bytes: int) -> list[str]:
    """Loads a server, and returns messages about faults."""
    options = [*recall_options(), "--cache-bytes", str(cache_bytes)]
    server, requests = Server(*options), make_requests()
    try:
        answers = [await complete(server.address, request) for request in requests]
        texts = [answer.text for answer in answers]
        warm, _ = await run_load(server, requests, texts, args.warm_up, args)
        before = await measure_idle_bytes(server)
        result, largest = await run_load(server, requests, texts, args.seconds, args)
        after = await measure_idle_bytes(server)
        cancelled = server.read_metrics()["vattention_cancelled_total"]
    finally:
        status = server.stop()
    faults = warm.faults + result.faults
    if status != 0:
        faults.append(f"the server ended with status {status}")
    if result.finished == 0 or result.disconnected == 0 or cancelled == 0:
        faults.append("expected finished and cancelled requests, found none")
    if cache_bytes == 0 and after > MEMORY_GROWTH * before:
        faults.append(f"the memory grew from {before} to {after} bytes")
    if largest > cache_bytes:
        faults.append(f"the cache had {largest:.0f} bytes; its limit is {cache_bytes}")
    print(
        f"cache of {cache_bytes >> 20} MiB (at most {largest / 2**20:.1f} used): "
        f"{result.finished} answers equal to single ones, {result.disconnected} disconnected, "
        f"{result.tokens / args.seconds:.0f} tokens per second, "
        f"memory {before / 2**20:.1f} MiB before and {after / 2**20:.1f} MiB after",
        flush=True,
    )
    return faults


def main() -> int:
    args = parse_arguments()
    faults = []
    for cache_bytes in [0, CACHE_BYTES]:
        faults += asyncio.run(check_server(args, cache_bytes))
    for fault in faults[:20]:
        print(f"load_server: {fault}", file=sys.stderr)
    passed = "0 passed, 1 failed" if faults else "1 passed, 0 failed"
    print(passed)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
