"""What was measured of a contender, and the results as a markdown table."""

import statistics
from dataclasses import asdict, dataclass, field

OURS = "vattention"


@dataclass(frozen=True)
class Reading:
    """One prompt read once."""

    seconds: float
    user: float
    """Seconds of processor time in the program, of all threads."""
    system: float
    """The same in the kernel."""


@dataclass
class Timed:
    """A contender at one length of the prompt."""

    name: str
    tokens: int
    answer: str = ""
    """The token that it would go on with, as text."""
    rounds: list[Reading] = field(default_factory=list)

    def seconds(self) -> float:
        """The median over rounds."""
        return statistics.median(reading.seconds for reading in self.rounds)

    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds()

    def over(self, other: "Timed") -> float:
        """The median of the rounds' ratios of the times."""
        return statistics.median(
            a.seconds / b.seconds for a, b in zip(self.rounds, other.rounds, strict=True)
        )

    def system_share(self) -> float | None:
        """Of the processor time of all rounds; None where there was none to speak of."""
        user, system = (
            sum(getattr(reading, kind) for reading in self.rounds) for kind in ("user", "system")
        )
        return system / (user + system) if user + system > 0 else None

    def summary(self) -> dict:
        known = {
            "seconds": self.seconds(),
            "tokens_per_second": self.rate(),
            "system_share": self.system_share(),
        }
        return {**asdict(self), **known}


def markdown(results: list[Timed]) -> str:
    """One table for each length of the prompt."""
    lengths = dict.fromkeys(timed.tokens for timed in results)
    return "\n".join(
        one_length([timed for timed in results if timed.tokens == length]) for length in lengths
    )


def one_length(results: list[Timed]) -> str:
    ours = next((timed for timed in results if timed.name == OURS), None)
    heads = ["contender", "seconds", "tokens/s", "x ours", "system time", "next token"]
    lines = [
        f"\n{results[0].tokens} tokens\n",
        row(heads),
        row(["---", "--:", "--:", "--:", "--:", "---"]),
    ]
    for timed in results:
        share = timed.system_share()
        cells = [timed.name, f"{timed.seconds():.3g}", f"{timed.rate():.0f}"]
        cells.append(f"{timed.over(ours):.2f}" if ours else "")
        cells.append("" if share is None else f"{share:.1%}")
        cells.append(f"`{timed.answer!r}`".replace("|", "\\|"))
        lines.append(row(cells))
    return "\n".join(lines)


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


LEGEND = """
seconds: of reading the prompt, up to the logits after its last token, without loading; the median over rounds.
x ours: the time over ours, the median over rounds; above 1, ours is faster. system time: the kernel's share of
the processor time; of ours, of the whole process with loading. next token: what each would go on with."""
