"""Measurements of this library's kernels, from the JSON of `gather`."""

import json
from dataclasses import dataclass
from pathlib import Path

from .shape import DIM, GROUP, KV_HEADS, Shape


class BadFile(Exception):
    """Error: a file is not the output of `gather --json`."""


@dataclass(frozen=True)
class Measured:
    """Measurement of kernels of this library at one shape."""

    bytes: int
    seconds: float
    list_sum: int | None
    """Sum of the tokens of all lists."""


@dataclass(frozen=True)
class Ours:
    """All measurements of this library's kernels."""

    device: str
    emulated: bool
    copy_rate: float | None
    results: dict[tuple[str, Shape, float], Measured]
    """Measurements by operation, shape and share of the tokens."""
    left_out: dict[Shape, str]

    def shapes(self) -> list[Shape]:
        """Returns the measured shapes, in order."""
        return list(dict.fromkeys(shape for _, shape, _ in self.results))

    def get(self, what: str, shape: Shape, share: float) -> Measured | None:
        return self.results.get((what, shape, share))

    def why_not(self, shape: Shape) -> str:
        """Returns the reason why a shape has no measurement."""
        return self.left_out.get(shape, f"gather did not measure {shape}")


def read(path: Path) -> Ours:
    """Reads a file; raises BadFile with the place and the fault."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from error
    try:
        return parse(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        fault = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise BadFile(f"{path}: expected the output of `gather --json`: {fault}") from error


def parse(document: dict) -> Ours:
    heads = tuple(document[name] for name in ("kv_heads", "group", "head_dim"))
    if heads != (KV_HEADS, GROUP, DIM):
        raise ValueError(
            f"kv_heads, group and head_dim: expected {(KV_HEADS, GROUP, DIM)}, got {heads}"
        )
    results = {}
    for found in document["results"]:
        key = (
            str(found["what"]),
            Shape(int(found["batch"]), int(found["tokens"])),
            round(float(found["share"]), 6),
        )
        measured = Measured(int(found["bytes"]), float(found["seconds"]), found["list_sum"])
        if not measured.seconds > 0:
            raise ValueError(
                f"seconds of {key[0]} at {key[1]}: expected more than 0, got {measured.seconds}"
            )
        results[key] = measured
    left_out = {
        Shape(int(left["batch"]), int(left["tokens"])): str(left["reason"])
        for left in document["left_out"]
    }
    rate = document["copy_rate"]
    return Ours(
        str(document["device"]),
        bool(document["emulated"]),
        None if rate is None else float(rate),
        results,
        left_out,
    )
