"""Goals of docs/notes/goals.md that these measurements decide, and their verdicts."""

from dataclasses import asdict, dataclass

from .ours import Measured, Ours
from .peers import Peers
from .shape import Shape

TENTH, TWENTIETH = 0.1, 0.05
"""Shares of the rows."""
LARGE = [Shape(8, 131072), Shape(32, 32768)]
ALONE = [Shape(1, 32768), Shape(1, 131072), Shape(1, 524288)]
TIMES_DENSE = {
    Shape(1, 32768): (1.5, 1.6),
    Shape(1, 131072): (3.0, 3.5),
    Shape(1, 524288): (4.5, 6.5),
    Shape(8, 131072): (5.0, 7.0),
    Shape(32, 32768): (5.0, 7.0),
}
"""Speedups of a step over dense attention, with a tenth and with a twentieth of the rows."""


@dataclass(frozen=True)
class Condition:
    """Bound on a measured number."""

    text: str
    wanted: float
    got: float | None
    missing: str = ""
    """Reason why there is no number; or, beside a number, missing peers that could change it."""
    at_most: bool = False

    def margin(self) -> float:
        """Returns the margin, which is at least 1 if the condition is met."""
        assert self.got is not None
        return self.wanted / self.got if self.at_most else self.got / self.wanted

    def missed(self) -> bool:
        return self.got is not None and self.margin() < 1

    def open(self) -> bool:
        """Returns True if the measurements do not decide the condition."""
        return not self.missed() and (self.got is None or bool(self.missing))

    def __str__(self) -> str:
        if self.got is None:
            return f"{self.text}: {self.missing}"
        return f"{self.got:.3g} of {'at most ' if self.at_most else ''}{self.wanted:g}, {self.text}"


@dataclass(frozen=True)
class Goal:
    """Goal, which is met if all its conditions are."""

    name: str
    text: str
    conditions: list[Condition]
    unmeasured: str = ""
    """Reason why the goal was not measured at all."""

    def verdict(self) -> str:
        """Returns `met`, `missed by ...`, or `not measured (reason)`."""
        if self.unmeasured:
            return f"not measured ({self.unmeasured})"
        missed = [condition for condition in self.conditions if condition.missed()]
        missed.sort(key=Condition.margin)
        unclear = [condition for condition in self.conditions if condition.open()]
        if missed:
            worst = missed[0]
            factor = 1 / worst.margin() if worst.at_most else worst.margin()
            apart = f"{abs(factor - 1):.0%}"
            others = (
                f"; {len(missed)} of {len(self.conditions)} conditions are missed"
                if len(missed) > 1
                else ""
            )
            beside = f"; {len(unclear)} not measured ({unclear[0].missing})" if unclear else ""
            return f"missed by {apart} ({worst}{others}{beside})"
        if unclear:
            met = len(self.conditions) - len(unclear)
            first = f"{unclear[0].text}: {unclear[0].missing}"
            return f"not measured ({met} of {len(self.conditions)} conditions met; {first})"
        closest = min(self.conditions, key=Condition.margin)
        return f"met (closest: {closest})"

    def summary(self) -> dict:
        """Returns the fields for JSON; `met` is null for conditions that are not decided."""
        conditions = []
        for condition in self.conditions:
            met = None if self.unmeasured or condition.open() else not condition.missed()
            conditions.append({**asdict(condition), "met": met})
        return {
            "name": self.name,
            "text": self.text,
            "verdict": self.verdict(),
            "conditions": conditions,
        }


@dataclass(frozen=True)
class Comparison:
    """Measurements of this library and of its peers."""

    ours: Ours
    peers: Peers

    def goals(self) -> list[Goal]:
        why = self._unmeasured()
        return [
            Goal("G1", "gather attention", self.gather(), why),
            Goal("G2", "selection", self.selection(), why),
            Goal(
                "G3",
                "a step beside dense attention, kernels only: select + gather",
                self.step(),
                why,
            ),
            Goal("G5", "the same beside naive PyTorch vAttention, one sequence", self.naive(), why),
        ]

    def _unmeasured(self) -> str:
        if self.ours.emulated:
            return "gather ran in an emulation"
        if not self.peers.on_gpu:
            return "peers ran without a GPU"
        same = self.peers.device in self.ours.device
        return "" if same else f"gather ran on {self.ours.device}, peers on {self.peers.device}"

    def gather(self) -> list[Condition]:
        """Returns the conditions of G1, for lists of at least 64 MB of rows."""
        conditions = []
        for shape in [ALONE[2], *LARGE]:
            for share in (TENTH, TWENTIETH):
                ours, place = self.ours.get("gather", shape, share), f"{shape}, {share:.0%} of rows"
                conditions += [
                    self.efficiency(ours, shape, f"E, {place}", 0.8),
                    self.beside(
                        "gather",
                        shape,
                        share,
                        ours and ours.seconds,
                        f"times FlashInfer, {place}",
                        1.15,
                    ),
                ]
        return conditions

    def selection(self) -> list[Condition]:
        """Returns the conditions of G2."""
        conditions = []
        for shape in LARGE:
            ours = self.ours.get("select", shape, TWENTIETH)
            conditions.append(self.efficiency(ours, shape, f"E on codes, {shape}", 0.75))
        alone = self.ours.get("select", ALONE[1], TWENTIETH)
        missing = "" if alone else self.ours.why_not(ALONE[1])
        got = alone.seconds * 1e6 if alone else None
        conditions.append(Condition(f"us, {ALONE[1]}", 8.0, got, missing, at_most=True))
        for shape in [*ALONE, *LARGE]:
            ours = self.ours.get("select", shape, TWENTIETH)
            text = f"times top-k of ready scores, {shape}"
            conditions.append(
                self.beside("top-k", shape, TWENTIETH, ours and ours.seconds, text, 2.0)
            )
        return conditions

    def step(self) -> list[Condition]:
        """Returns the conditions of G3.

        The time of a step is the sum of two medians; dense attention is the fastest one, possibly
        that of this library.
        """
        conditions = []
        for shape, wanted in TIMES_DENSE.items():
            for share, times in zip((TENTH, TWENTIETH), wanted):
                text = f"times dense, {shape}, {share:.0%} of rows"
                conditions.append(
                    self.beside(
                        "dense", shape, share, self.seconds_of_step(shape, share), text, times
                    )
                )
        return conditions

    def naive(self) -> list[Condition]:
        """Returns the conditions of G5."""
        conditions = []
        for shape in ALONE:
            for share in (TENTH, TWENTIETH):
                text = f"times naive, {shape}, {share:.0%} of rows"
                conditions.append(
                    self.beside(
                        "naive", shape, share, self.seconds_of_step(shape, share), text, 10.0
                    )
                )
        return conditions

    def seconds_of_step(self, shape: Shape, share: float) -> float | None:
        """Returns the seconds of selection and of attention to a share of the rows."""
        parts = self.ours.get("select", shape, TWENTIETH), self.ours.get("gather", shape, share)
        return sum(part.seconds for part in parts) if all(parts) else None

    def fastest(self, what: str, shape: Shape, share: float) -> tuple[str, float] | None:
        """Returns name and seconds of the fastest entry, for `dense` also among this library's."""
        share = 1.0 if what == "dense" else share
        best = self.peers.best(what, shape, share)
        found = [(best.name, best.seconds)] if best else []
        own = self.ours.get("dense", shape, 1.0) if what == "dense" else None
        if own:
            found.append(("our dense", own.seconds))
        return min(found, key=lambda entry: entry[1], default=None)

    def beside(
        self, what: str, shape: Shape, share: float, ours: float | None, text: str, wanted: float
    ) -> Condition:
        """Returns a condition on the speedup over the fastest peer.

        The condition stays open if a peer is missing that might be faster.
        """
        if ours is None:
            return Condition(text, wanted, None, self.ours.why_not(shape))
        missing = self.peers.why_not(what, shape, 1.0 if what == "dense" else share)
        fastest = self.fastest(what, shape, share)
        return Condition(text, wanted, fastest[1] / ours if fastest else None, missing)

    def efficiency(
        self, ours: Measured | None, shape: Shape, text: str, wanted: float
    ) -> Condition:
        """Returns a condition on E: the time of the bytes at the rate of a copy, over the time."""
        rate = self.copy_rate()
        if ours is None or rate is None:
            return Condition(
                text,
                wanted,
                None,
                self.ours.why_not(shape) if ours is None else "no rate of a copy",
            )
        return Condition(text, wanted, ours.bytes / rate / ours.seconds)

    def copy_rate(self) -> float | None:
        """Returns the higher of the two measured rates, which is the stricter one."""
        return max(
            (rate for rate in (self.ours.copy_rate, self.peers.copy_rate) if rate), default=None
        )
