"""Makes the entries of each shape, checks them, times them, and shows what was found."""

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
from .timing import Clock, GpuClock, at_most

MOST_WRONG = 0.03
"""Of an output in bf16, relative to f64: sums of thousands of rounded products."""
TINY = Shape(1, 256)


@dataclass(frozen=True)
class OneShape:
    """All entries of a shape."""

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
            ("torch.topk", top_k.of_torch),
            ("flashinfer top_k", top_k.of_flashinfer),
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
        """Those that `gather` has read."""
        chosen = lists.one_in(self.data.shape, step, self.data.device)
        ours = self.ours and self.ours.get("gather", self.data.shape, 1 / step)
        if ours and ours.list_sum != int(chosen.sum()):
            raise LeftOut(
                f"its lists are not gather's: their tokens add up to {chosen.sum()}, not {ours.list_sum}"
            )
        return chosen


def measured(entry: Entry, clock: Clock) -> Result:
    """Checks an entry, times it, and checks what the last time left."""
    ready = entry.make()
    expect_right(ready.error(ready.run()))
    timing = clock.median(ready.run)
    error = expect_right(ready.error(timing.out))
    place = entry.what, entry.name, entry.shape, entry.share, entry.bytes
    return Result(*place, timing.seconds, timing.times, error, timing.no_graph)


def expect_right(error: float) -> float:
    if not error <= MOST_WRONG:
        raise LeftOut(f"its output is wrong by {error:.1e} of f64's")
    return error


@dataclass
class Bench:
    """What goes on from entry to entry."""

    args: argparse.Namespace
    ours: Ours
    clock: Clock
    peers: Peers
    began: float = field(default_factory=time.monotonic)
    slow: dict[str, str] = field(default_factory=dict)
    """Families that have been given up once, and why: they would be again, and nothing else be timed."""

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
                with contextlib.suppress(RuntimeError):  # what it says the next entry says, too
                    torch.cuda.empty_cache()

    def attempt(self, entry: Entry) -> None:
        """Times an entry, or says why not. It may fail in any way: it is others' code."""
        try:
            with at_most(self.seconds_for(entry)):
                self.peers.results.append(measured(entry, self.clock))
            note(f"{entry}: {self.peers.results[-1].seconds * 1e6:.1f} us")
        except Exception as error:
            reason = (
                str(error)
                if isinstance(error, LeftOut)
                else f"{type(error).__name__}: {dense.first_line(error)}"
            )
            if isinstance(error, TooSlow):
                self.slow.setdefault(family(entry.name), f"{reason} at {entry.shape}")
            self.peers.failures.append(Failure.of(entry, reason, isinstance(error, Refused)))
            note(f"left out: {entry}: {reason}")

    def seconds_for(self, entry: Entry) -> float:
        if family(entry.name) in self.slow:
            raise LeftOut(self.slow[family(entry.name)])
        left = self.args.limit - (time.monotonic() - self.began)
        if left <= 0:
            raise LeftOut(f"the {self.args.limit:g} s of all were over")
        return min(left, self.args.entry_limit)


def run(args: argparse.Namespace, ours: Ours) -> None:
    """The whole benchmark; prints the table and the goals."""
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
    """Has FlashInfer compile what will be timed, so that it is there when times count."""
    torch.set_grad_enabled(False)
    one = OneShape(Data(TINY, args.device), None)
    for entry in one.entries():
        if "flashinfer" not in entry.name:
            continue
        try:
            ready = entry.make()
            note(f"prepared: {entry}: error {expect_right(ready.error(ready.run())):.1e}")
        except Exception as error:  # as in `attempt`; it will be said again there
            note(f"not prepared: {entry}: {type(error).__name__}: {dense.first_line(error)}")


def device_name(device: str) -> str:
    return (
        f"{platform.machine()} without a GPU" if device == "cpu" else torch.cuda.get_device_name()
    )


def versions() -> dict[str, str | None]:
    """Of what is timed; none of what is not there."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    found["cudnn"] = (
        str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None
    )
    for name in ("torch", "flashinfer"):
        try:
            found[name] = importlib.import_module(name).__version__
        except Exception:  # the entries say why
            found[name] = None
    return found


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
