"""What is timed: one way each of doing something that one of our kernels does."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .shape import Shape


class LeftOut(Exception):
    """An entry that cannot be timed here; the message says why."""


class TooSlow(LeftOut):
    """An entry that was given up."""


class Refused(LeftOut):
    """An entry whose library says that it does not do this at all: it is no peer here."""


@dataclass(frozen=True)
class Ready:
    """An entry that has what it needs."""

    run: Callable[[], Any]
    """What is timed. It starts work on the device and does not wait for it."""
    error: Callable[[Any], float]
    """How wrong what `run` returned is, relative to f64."""


@dataclass(frozen=True)
class Entry:
    """A way of doing something, not yet made."""

    what: str
    """`dense`, `gather`, `top-k` or `naive`."""
    name: str
    shape: Shape
    share: float
    """Of the tokens, those that are read or taken."""
    bytes: int
    """Of what must be read: rows, or scores."""
    make: Callable[[], Ready]
    """Raises whatever is wrong."""

    def place(self) -> dict:
        """Where it stands among others, for JSON."""
        return {"what": self.what, "name": self.name, **asdict(self.shape), "share": self.share}

    def __str__(self) -> str:
        return f"{self.name} ({self.what}, {self.shape}, {self.share:.0%})"
