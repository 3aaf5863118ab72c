"""Timing in rounds of bursts, in which entries alternate, so that load slows all of them alike."""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from .data import GIB, Shape, huge_array, relative_errors
from .entries import Entry, LeftOut, Sequential

T = TypeVar("T")


def setting(tokens: int, threads: int) -> str:
    return f"{tokens} tokens, {threads} thread{'s' if threads > 1 else ''}"


@dataclass
class Timed:
    """Measurements of an entry at one shape and number of threads."""

    name: str
    dtype: str
    tokens: int
    threads: int
    layers: int
    bytes: int
    """Bytes of keys and values of one layer that a call reads."""
    density: float = 1.0
    error_worst: float | None = None
    """Largest error of a query head's output, relative to f64 over the same stored numbers."""
    error_mean: float | None = None
    """Mean of these errors over query heads."""
    rounds: list[float] = field(default_factory=list)
    """Median seconds of a call, for each round."""

    def setting(self) -> str:
        return setting(self.tokens, self.threads)

    def seconds(self) -> float:
        return statistics.median(self.rounds)

    def rate(self) -> float:
        """Returns the rate of reading in GB/s."""
        return self.bytes / self.seconds() / 1e9

    def ratio(self, other: "Timed") -> float:
        """Returns the median over rounds of the time relative to another entry's."""
        return statistics.median(a / b for a, b in zip(self.rounds, other.rounds))

    def summary(self) -> dict:
        return {**asdict(self), "seconds": self.seconds(), "gb_per_second": self.rate()}


@dataclass(frozen=True)
class Method:
    rounds: int
    burst: float
    """Seconds of calls per entry and round; at least one call, at most one for each layer."""


class Evictor:
    """Evicts the data of entries from the processor's caches by a read of 1 GiB on one thread.

    Meanwhile, the threads of other libraries stop spinning and go to sleep.
    """

    def __init__(self) -> None:
        self.memory = huge_array((GIB // 4,), np.float32)
        self.memory[...] = 1.0

    def run(self) -> float:
        return float(self.memory.sum())


def check(entry: Entry, expected: np.ndarray, shape: Shape, threads: int) -> Timed:
    """Runs an entry once on the first layer, and measures its errors.

    `expected` is the exact output, `[query_heads, head_dim]`.
    """
    entry.call(0)
    amount = shape.bytes(entry.dtype) if entry.attends else Sequential.bytes
    timed = Timed(entry.name, entry.dtype, shape.tokens, threads, entry.layers, amount)
    if entry.attends:
        errors = relative_errors(entry.output().astype(np.float64), expected)
        timed.error_worst, timed.error_mean = float(errors.max()), float(errors.mean())
    return timed


def measure(entries: list[tuple[Entry, Timed]], method: Method, evictor: Evictor) -> None:
    """Times all entries in rounds; the first round is a warm-up, each begins with another entry."""
    densities: list[list[float]] = [[] for _ in entries]
    layers = [0 for _ in entries]
    for turn in range(method.rounds + 1):
        for i in [(place + turn) % len(entries) for place in range(len(entries))]:
            entry, timed = entries[i]
            progress(f"{timed.setting()}: round {turn}/{method.rounds}: {entry.name} {entry.dtype}")
            evictor.run()
            times, layers[i] = burst(entry, layers[i], method.burst)
            if turn > 0:
                timed.rounds.append(statistics.median(times))
                densities[i].append(entry.density())
    for (_, timed), shares in zip(entries, densities):
        timed.density = statistics.mean(shares)
        timed.bytes = round(timed.bytes * timed.density)
    progress("")


def burst(entry: Entry, layer: int, seconds: float) -> tuple[list[float], int]:
    """Makes an untimed call and then timed calls, each on the next layer, at most one per layer."""
    entry.call(layer)
    times: list[float] = []
    while not times or (len(times) < entry.layers - 1 and sum(times) < seconds):
        layer = (layer + 1) % entry.layers
        start = time.perf_counter()
        entry.call(layer)
        times.append(time.perf_counter() - start)
    return times, (layer + 1) % entry.layers


class Load:
    """Measurement of the processor time that other processes use, on Linux."""

    def __init__(self) -> None:
        self.start = self._now()

    def share(self) -> float | None:
        """Returns other processes' share of the processor time, with stolen time."""
        now = self._now()
        if now is None or self.start is None:
            return None
        total, busy, own = (b - a for a, b in zip(self.start, now))
        return max(0.0, busy - own) / max(total, 1e-9)

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        try:
            line = Path("/proc/stat").read_text().splitlines()[0]
        except OSError:
            return None
        user, nice, system, idle, wait, interrupts, soft, steal = map(int, line.split()[1:9])
        tick = os.sysconf("SC_CLK_TCK")
        busy = user + nice + system + interrupts + soft + steal
        times = os.times()
        return (busy + idle + wait) / tick, busy / tick, times.user + times.system


def progress(text: str) -> None:
    """Prints progress in the last line of stderr, if it is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def note(text: str) -> None:
    progress("")
    print(text, file=sys.stderr, flush=True)


def attempt(name: str, make: Callable[[], T]) -> T | None:
    """Returns the result of `make`; prints the reason and returns None if it raises LeftOut."""
    try:
        return make()
    except LeftOut as reason:
        note(f"left out: {name}: {reason}")
        return None
