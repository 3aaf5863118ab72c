"""Benchmark: makes the entries of each shape, checks and times them, and prints the results."""

import argparse
import contextlib
import functools
import importlib
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from . import dense, lists, naive, paged, table, top_k
from .data import Data
from .entry import Entry, LeftOut, Ready, Refused, TooSlow
from .goals import Comparison
from .ours import Ours
from .peers import Failure, Peers, Result, family
from .shape import STEPS, Shape
from .timing import Clock, GpuClock, limit_seconds

MOST_WRONG = 0.03
"""Largest allowed error of an output in bf16, relative to f64."""
TINY = Shape(1, 256)


@dataclass(frozen=True)
class OneShape:
    """Entries of a shape."""

    data: Data
    ours: Ours | None

    def entries(self) -> Iterator[Entry]:
        yield from self.dense()
        for step in STEPS:
            yield from self.gathers(step)
        yield from self.selections()
        for step in STEPS:
            size = naive.bytes_read(self.data.shape, step)
            yield self.entry("naive", "naive vattention", step, size, naive.ready)

    def dense(self) -> Iterator[Entry]:
        size = self.data.shape.row_bytes(1)
        for backend in ["math"] if self.data.device == "cpu" else ["flash", "cudnn"]:
            for packed in (False, True):
                name = f"sdpa {backend}{', packed' if packed else ''}"
                make = functools.partial(dense.sdpa, self.data, backend, packed)
                yield Entry("dense", name, self.data.shape, 1.0, size, make)
        for name, tensor_cores in self.flashinfers():
            make = functools.partial(paged.dense, self.data, tensor_cores)
            yield Entry("dense", name, self.data.shape, 1.0, size, make)

    def gathers(self, step: int) -> Iterator[Entry]:
        size = self.data.shape.row_bytes(step)
        for name, tensor_cores in self.flashinfers():
            make = lambda data, step, cores=tensor_cores: paged.gathered(
                data, self.lists(step), cores
            )
            yield self.entry("gather", f"{name}, pages of 1", step, size, make)

    def selections(self) -> Iterator[Entry]:
        shape, step, device = self.data.shape, STEPS[-1], self.data.device
        for name, make in [
            ("torch.topk", top_k.make_torch),
            ("flashinfer top_k", top_k.make_flashinfer),
        ]:
            make = lambda data, step, make=make: make(shape, shape.tokens // step, device)
            yield self.entry("top-k", name, step, shape.query_heads * shape.tokens * 4, make)

    @staticmethod
    def flashinfers() -> list[tuple[str, bool]]:
        return [("flashinfer", False), ("flashinfer tensor cores", True)]

    def entry(
        self, what: str, name: str, step: int, size: int, make: Callable[[Data, int], Ready]
    ) -> Entry:
        return Entry(what, name, self.data.shape, 1 / step, size, lambda: make(self.data, step))

    def lists(self, step: int) -> torch.Tensor:
        """Returns the token lists that `gather` has read."""
        chosen = lists.make_lists(self.data.shape, step, self.data.device)
        ours = self.ours and self.ours.get("gather", self.data.shape, 1 / step)
        if ours and ours.list_sum != int(chosen.sum()):
            raise LeftOut(
                f"its token lists differ from gather's: their sum is {chosen.sum()}, "
                f"not {ours.list_sum}"
            )
        return chosen


def measure_entry(entry: Entry, clock: Clock) -> Result:
    """Checks an entry, times it, and checks the output of the last call."""
    ready = entry.make()
    expect_right(ready.error(ready.run()))
    timing = clock.median(ready.run)
    error = expect_right(ready.error(timing.out))
    place = entry.what, entry.name, entry.shape, entry.share, entry.bytes
    return Result(*place, timing.seconds, timing.times, error, timing.no_graph)


def expect_right(error: float) -> float:
    if not error <= MOST_WRONG:
        raise LeftOut(f"its output differs from f64 by {error:.1e}")
    return error


@dataclass
class Bench:
    """State of the benchmark over all entries."""

    args: argparse.Namespace
    ours: Ours
    clock: Clock
    peers: Peers
    began: float = field(default_factory=time.monotonic)
    slow: dict[str, str] = field(default_factory=dict)
    """Families that exceeded their time limit once, with the reason; they are not tried again."""

    def measure(self, shape: Shape) -> None:
        try:
            one = OneShape(Data(shape, self.args.device), self.ours)
        except RuntimeError as error:
            reason = f"no keys and values: {dense.first_line(error)}"
            self.peers.failures.append(Failure("all", "all", shape, 1.0, reason))
            return note(f"left out: {shape}: {reason}")
        for entry in one.entries():
            self.attempt(entry)
            if self.peers.on_gpu:
                with contextlib.suppress(RuntimeError):  # The next entry raises it again.
                    torch.cuda.empty_cache()

    def attempt(self, entry: Entry) -> None:
        """Times an entry, or stores the reason of its failure, which may be any exception."""
        try:
            with limit_seconds(self.seconds_for(entry)):
                self.peers.results.append(measure_entry(entry, self.clock))
            note(f"{entry}: {self.peers.results[-1].seconds * 1e6:.1f} us")
        except Exception as error:
            reason = (
                str(error)
                if isinstance(error, LeftOut)
                else f"{type(error).__name__}: {dense.first_line(error)}"
            )
            if isinstance(error, TooSlow):
                self.slow.setdefault(family(entry.name), f"{reason} at {entry.shape}")
            refused = isinstance(error, Refused)
            self.peers.failures.append(Failure.from_entry(entry, reason, refused))
            note(f"left out: {entry}: {reason}")

    def seconds_for(self, entry: Entry) -> float:
        if family(entry.name) in self.slow:
            raise LeftOut(self.slow[family(entry.name)])
        left = self.args.limit - (time.monotonic() - self.began)
        if left <= 0:
            raise LeftOut(f"the time limit of {self.args.limit:g} s for all entries has passed")
        return min(left, self.args.entry_limit)


def run(args: argparse.Namespace, ours: Ours) -> None:
    """Runs the whole benchmark, and prints the table and the goals."""
    torch.set_grad_enabled(False)
    shapes = args.shapes or ours.shapes()
    clock = (Clock if args.device == "cpu" else GpuClock)(args.device, args.seconds)
    peers = Peers(device_name(args.device), args.device != "cpu", clock.copy_rate(), versions())
    bench = Bench(args, ours, clock, peers)
    for shape in shapes:
        bench.measure(shape)
    comparison = Comparison(ours, peers)
    show(comparison, shapes)
    if args.json:
        table.write_json(args.json, comparison)


def show(comparison: Comparison, shapes: list[Shape]) -> None:
    ours, peers = comparison.ours, comparison.peers
    print(f"peers on {peers.device}; ours on {ours.device}")
    rates = [("gather", ours.copy_rate), ("torch", peers.copy_rate)]
    print(
        f"a copy, TB/s: {', '.join(f'{name} {rate / 1e12:.3f}' for name, rate in rates if rate)}\n"
    )
    print(table.markdown(comparison, shapes) + "\n" + table.LEGEND + "\n")
    for line in [*table.left_out(comparison), *table.without_graph(peers)]:
        print(line)
    print()
    for goal in comparison.goals():
        print(f"{goal.name} {goal.text}: {goal.verdict()}")


def prepare(args: argparse.Namespace) -> None:
    """Lets FlashInfer compile the kernels that will be timed."""
    torch.set_grad_enabled(False)
    one = OneShape(Data(TINY, args.device), None)
    for entry in one.entries():
        if "flashinfer" not in entry.name:
            continue
        try:
            ready = entry.make()
            note(f"prepared: {entry}: error {expect_right(ready.error(ready.run())):.1e}")
        except Exception as error:  # `attempt` reports it again.
            note(f"not prepared: {entry}: {type(error).__name__}: {dense.first_line(error)}")


def device_name(device: str) -> str:
    return (
        f"{platform.machine()} without a GPU" if device == "cpu" else torch.cuda.get_device_name()
    )


def versions() -> dict[str, str | None]:
    """Returns the versions of the libraries; None for missing ones."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    found["cudnn"] = (
        str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None
    )
    for name in ("torch", "flashinfer"):
        try:
            found[name] = importlib.import_module(name).__version__
        except Exception:  # The entries report the reason.
            found[name] = None
    return found


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
