"""Entries of the benchmark: other implementations of the operations of this library's kernels."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .shape import Shape


class LeftOut(Exception):
    """Error: an entry cannot be timed here; the message has the reason."""


class TooSlow(LeftOut):
    """Error: an entry exceeded its time limit."""


class Refused(LeftOut):
    """Error: the library of an entry does not support the inputs, so it is no peer."""


@dataclass(frozen=True)
class Ready:
    """Prepared entry."""

    run: Callable[[], Any]
    """Function to time, which starts work on the device without waiting for the result."""
    error: Callable[[Any], float]
    """Function that computes the error of the result of `run`, relative to f64."""


@dataclass(frozen=True)
class Entry:
    """Description of an entry that is not yet prepared."""

    what: str
    """Operation: `dense`, `gather`, `top-k` or `naive`."""
    name: str
    shape: Shape
    share: float
    """Share of the tokens that are read or selected."""
    bytes: int
    """Bytes of the rows or scores that must be read."""
    make: Callable[[], Ready]
    """Function that prepares the entry; it may raise any exception."""

    def place(self) -> dict:
        """Returns the fields that identify the entry, for JSON."""
        return {"what": self.what, "name": self.name, **asdict(self.shape), "share": self.share}

    def __str__(self) -> str:
        return f"{self.name} ({self.what}, {self.shape}, {self.share:.0%})"
