"""Benchmark: makes data and entries, times them, and prints the table."""

import argparse
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import install
from .choice import Choice
from .data import Layer, Shape, exact, stored_layers
from .entries import Entry, Ggml, LeftOut, Sequential, Stored, Torch, import_torch, load_ggml
from .ours import Library, Ours, Pipeline
from .table import LEGEND, markdown, write_json
from .timing import Evictor, Load, Method, Timed, attempt, check, measure, note, progress, setting


@dataclass(frozen=True)
class Bench:
    """Benchmark of all entries at one number of tokens."""

    args: argparse.Namespace
    library: Library
    shape: Shape
    layer: Layer
    stored: dict[str, Stored]
    """Layers of the peers, by precision."""
    expected: dict[str, np.ndarray]
    """Exact attention, `[query_heads, head_dim]`, by precision."""

    def entries(self, threads: int) -> Iterator[tuple[str, Callable[[], Entry]]]:
        """Yields names of entries, and functions that make them."""
        yield "sequential read", lambda: Sequential(threads)
        for choice in self.args.peers:
            yield str(choice), lambda choice=choice: self.peer(choice, threads)
        for choice in self.args.ours:
            yield str(choice), lambda choice=choice: self.ours(choice, threads)

    def peer(self, choice: Choice, threads: int) -> Entry:
        common = choice.dtype, self.shape, self.layer, self.stored[choice.dtype], threads
        if choice.name == "llama.cpp":
            return Ggml(*common)
        return Torch(choice.name.removeprefix("torch-"), *common)

    def ours(self, choice: Choice, threads: int) -> Entry:
        path = Path(choice.name)
        path = path if path.exists() else install.ROOT / path
        layers = self.shape.layers(choice.dtype, self.args.gib)
        pipeline = Pipeline(path, choice.settings, choice.dtype)
        return Ours(self.library, pipeline, self.shape, self.layer, layers, threads)

    def make(self, make: Callable[[], Entry], threads: int) -> tuple[Entry, Timed]:
        """Makes an entry, and checks its output."""
        entry = make()
        return entry, check(entry, self.expected[entry.dtype], self.shape, threads)

    def run(self, threads: int, evictor: Evictor) -> list[Timed]:
        """Times all entries with this number of threads."""
        pairs: list[tuple[Entry, Timed]] = []
        where = setting(self.shape.tokens, threads)
        try:
            for name, make in self.entries(threads):
                progress(f"{where}: preparing {name}")
                pair = attempt(name, lambda make=make: self.make(make, threads))
                if pair:
                    pairs.append(pair)
            load = Load()
            measure(pairs, Method(self.args.rounds, self.args.burst), evictor)
            share = load.share()
            if share is not None:
                note(f"{where}: other processes used {share:.0%} of the processor time")
        finally:
            for entry, _ in pairs:
                entry.close()
        return [timed for _, timed in pairs]


def prepare(args: argparse.Namespace, library: Library, tokens: int) -> Bench:
    """Makes keys and values, and computes the exact attention to them."""
    shape = Shape(args.query_heads, args.kv_heads, args.head_dim, tokens)
    progress(f"{tokens} tokens: making keys and values")
    try:
        layer = library.synthetic(args.kind, shape, args.seed)
    except LeftOut as reason:
        raise install.Failed(f"no keys and values: {reason}")
    ours, peers = ({choice.dtype for choice in choices} for choices in (args.ours, args.peers))
    progress(f"{tokens} tokens: copying keys and values, and computing attention in f64")
    stored = {dtype: stored_layers(layer, dtype, shape.layers(dtype, args.gib)) for dtype in peers}
    expected = {dtype: exact(layer, dtype) for dtype in ours | peers | {"f32"}}
    return Bench(args, library, shape, layer, stored, expected)


def run(args: argparse.Namespace) -> None:
    """Runs the whole benchmark, and prints the table."""
    if not args.no_build:
        install.build_ours()
    try:
        library = Library()
    except OSError as error:
        raise install.Failed(f"our library cannot be loaded ({error}); {install.HOW}")
    evictor = Evictor()
    results: list[Timed] = []
    for tokens in args.tokens:
        bench = prepare(args, library, tokens)
        for threads in args.threads:
            results += bench.run(threads, evictor)
        del bench
    print(markdown(results) + "\n" + LEGEND)
    if args.json:
        write_json(args.json, facts(args), results)


def facts(args: argparse.Namespace) -> dict:
    """Describes the machine, the versions and the method, for JSON."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None
    )
    shown = [
        "tokens",
        "threads",
        "query_heads",
        "kv_heads",
        "head_dim",
        "kind",
        "seed",
        "rounds",
        "burst",
        "gib",
    ]
    return {
        "machine": {
            "processor": model or platform.processor(),
            "count": os.cpu_count(),
            "system": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": version(lambda: import_torch().__version__),
            "ggml": version(lambda: load_ggml().ggml_decode_version().decode()),
            install.PACKAGE: install.VERSION,
        },
        "method": {name: getattr(args, name) for name in shown},
    }


def version(read: Callable[[], str]) -> str | None:
    try:
        return read()
    except LeftOut:
        return None
