"""Measurements of the peers."""

from dataclasses import asdict, dataclass, field

from .entry import Entry
from .shape import Shape


@dataclass(frozen=True)
class Result:
    """Measurement of an entry."""

    what: str
    name: str
    shape: Shape
    share: float
    bytes: int
    seconds: float
    times: int = 0
    error: float = 0.0
    """Largest error of a head, relative to f64."""
    no_graph: str | None = None
    """Reason why the calls were not replayed as a CUDA graph; None if they were."""

    def summary(self) -> dict:
        """Returns the fields for JSON."""
        parts = asdict(self)
        return {"what": parts.pop("what"), "name": parts.pop("name"), **parts.pop("shape"), **parts}


@dataclass(frozen=True)
class Failure:
    """Reason why an entry was not measured."""

    what: str
    name: str
    shape: Shape
    share: float
    reason: str
    refused: bool = False
    """True if the library of the entry does not support the inputs."""

    @classmethod
    def from_entry(cls, entry: Entry, reason: str, refused: bool = False) -> "Failure":
        return cls(entry.what, entry.name, entry.shape, entry.share, reason, refused)

    def summary(self) -> dict:
        """Returns the fields for JSON."""
        place = {
            "what": self.what,
            "name": self.name,
            "batch": self.shape.batch,
            "tokens": self.shape.tokens,
        }
        return {**place, "share": self.share, "reason": self.reason, "refused": self.refused}


@dataclass
class Peers:
    """All measurements of the peers."""

    device: str
    on_gpu: bool
    copy_rate: float | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def best(self, what: str, shape: Shape, share: float) -> Result | None:
        """Returns the fastest result."""
        return min(
            self._filter(self.results, what, shape, share),
            key=lambda result: result.seconds,
            default=None,
        )

    def why_not(self, what: str, shape: Shape, share: float) -> str:
        """Lists the missing peers with the reasons.

        The result is empty if peers were measured and none is missing. A peer is not missing if
        another form of it was measured, or if it does not support the inputs while another does.
        """
        timed = self._filter(self.results, what, shape, share)
        families = {family(result.name) for result in timed}
        missing = [
            f"{failure.name}: {failure.reason}"
            for failure in self._filter(self.failures, what, shape, share)
            if family(failure.name) not in families and not (failure.refused and timed)
        ]
        return "; ".join(missing) if missing or timed else f"no peer was tried at {shape}"

    @staticmethod
    def _filter(items: list, what: str, shape: Shape, share: float) -> list:
        key = (what, shape, share)
        return [item for item in items if (item.what, item.shape, item.share) == key]


def family(name: str) -> str:
    """Returns the part of the name that all forms of a kernel share."""
    return name.partition(",")[0]
