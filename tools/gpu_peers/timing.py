"""Timing of operations from memory: on a GPU as a graph, by the device's clock, as in `gather`."""

import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .dense import first_line
from .entry import TooSlow

FLUSHED = 256 << 20
"""Bytes written before each timed call: several times the largest cache of a GPU."""
COPIED = 1 << 30
"""Bytes of a timed copy."""
FEWEST, MOST = 5, 200
"""Smallest and largest number of times in a median."""


@dataclass(frozen=True)
class Timing:
    """Median time of calls."""

    seconds: float
    times: int
    no_graph: str | None
    """Reason why the calls were not replayed as a CUDA graph; None if they were."""
    out: Any
    """Result of the last call."""


class Clock:
    """Clock of the host, for devices whose work is done when a call returns."""

    def __init__(self, device: str, limit: float) -> None:
        self.limit = limit
        self.flushed = torch.empty(FLUSHED, dtype=torch.uint8, device=device)

    def median(self, run: Callable[[], Any]) -> Timing:
        """Times calls for about `limit` seconds, each after a flush of the caches.

        The first call does not count.
        """
        run, no_graph = self._prepare(run)
        out, _ = self._once(run)
        began, times = time.perf_counter(), []
        while len(times) < FEWEST or (
            len(times) < MOST and time.perf_counter() - began < self.limit
        ):
            out, seconds = self._once(run)
            times.append(seconds)
        return Timing(statistics.median(times), len(times), no_graph, out)

    def copy_rate(self) -> float:
        """Measures the bytes per second that a copy reads and writes, as `gather` does."""
        source, target = (
            torch.zeros(COPIED, dtype=torch.uint8, device=self.flushed.device) for _ in range(2)
        )
        self._once(lambda: target.copy_(source))
        times = [self._once(lambda: target.copy_(source))[1] for _ in range(20)]
        return 2 * COPIED / statistics.median(times)

    def _prepare(self, run: Callable[[], Any]) -> tuple[Callable[[], Any], str | None]:
        return run, "no GPU"

    def _once(self, run: Callable[[], Any]) -> tuple[Any, float]:
        self.flushed.zero_()
        start = time.perf_counter()
        out = run()
        return out, time.perf_counter() - start


class GpuClock(Clock):
    """Clock of the GPU: events in the stream of the work."""

    def __init__(self, device: str, limit: float) -> None:
        super().__init__(device, limit)
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def _prepare(self, run: Callable[[], Any]) -> tuple[Callable[[], Any], str | None]:
        """Returns a function that replays `run` as a graph, or `run` itself if capturing fails."""
        # Libraries initialize themselves in their first calls, which must not be captured.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                out = run()
        except RuntimeError as error:
            torch.cuda.synchronize()
            return run, first_line(error)

        def replay() -> Any:
            graph.replay()
            return out

        return replay, None

    def _once(self, run: Callable[[], Any]) -> tuple[Any, float]:
        self.flushed.zero_()
        # The host has queued all work long before the flush is done.
        self.begin.record()
        out = run()
        self.end.record()
        self.end.synchronize()
        return out, self.begin.elapsed_time(self.end) / 1e3


@contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Raises TooSlow in the block if it takes longer, as soon as Python code runs."""

    def stop(*_: object) -> None:
        raise TooSlow(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
