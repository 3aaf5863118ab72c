"""What was found of the others."""

from dataclasses import asdict, dataclass, field

from .entry import Entry
from .shape import Shape


@dataclass(frozen=True)
class Result:
    """An entry that was timed."""

    what: str
    name: str
    shape: Shape
    share: float
    bytes: int
    seconds: float
    times: int = 0
    error: float = 0.0
    """Relative to f64, of the worst head."""
    no_graph: str | None = None

    def summary(self) -> dict:
        """For JSON."""
        parts = asdict(self)
        return {"what": parts.pop("what"), "name": parts.pop("name"), **parts.pop("shape"), **parts}


@dataclass(frozen=True)
class Failure:
    """One that was not."""

    what: str
    name: str
    shape: Shape
    share: float
    reason: str
    refused: bool = False
    """Whether its library says that it does not do this."""

    @classmethod
    def of(cls, entry: Entry, reason: str, refused: bool = False) -> "Failure":
        return cls(entry.what, entry.name, entry.shape, entry.share, reason, refused)

    def summary(self) -> dict:
        """For JSON."""
        place = {
            "what": self.what,
            "name": self.name,
            "batch": self.shape.batch,
            "tokens": self.shape.tokens,
        }
        return {**place, "share": self.share, "reason": self.reason, "refused": self.refused}


@dataclass
class Peers:
    """All of them."""

    device: str
    on_gpu: bool
    copy_rate: float | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def best(self, what: str, shape: Shape, share: float) -> Result | None:
        """The fastest."""
        return min(
            self._of(self.results, what, shape, share),
            key=lambda result: result.seconds,
            default=None,
        )

    def why_not(self, what: str, shape: Shape, share: float) -> str:
        """Those that are missing, with reasons; nothing if none is, and some have been timed.

        One that was timed in another form is not missing, nor is one that does not do this at all.
        """
        timed = self._of(self.results, what, shape, share)
        families = {family(result.name) for result in timed}
        failed = [
            one
            for one in self._of(self.failures, what, shape, share)
            if family(one.name) not in families
        ]
        missing = [f"{one.name}: {one.reason}" for one in failed if not (one.refused and timed)]
        return "; ".join(missing) if missing or timed else f"no peer was tried at {shape}"

    @staticmethod
    def _of(found: list, what: str, shape: Shape, share: float) -> list:
        return [one for one in found if (one.what, one.shape, one.share) == (what, shape, share)]


def family(name: str) -> str:
    """What forms of one kernel have in common."""
    return name.partition(",")[0]
