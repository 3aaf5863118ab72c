"""Measurements of a contender, and their table in Markdown."""

import statistics
from dataclasses import asdict, dataclass, field

OURS = "vattention"


@dataclass(frozen=True)
class Reading:
    """Times of one reading of a prompt, in seconds."""

    seconds: float
    user: float
    """Processor time of all threads in the program."""
    system: float
    """Processor time of all threads in the kernel."""


@dataclass
class Timed:
    """Readings of a contender at one length of the prompt."""

    name: str
    tokens: int
    answer: str = ""
    """Next token after the prompt, as text."""
    rounds: list[Reading] = field(default_factory=list)

    def seconds(self) -> float:
        """Returns the median time over rounds."""
        return statistics.median(reading.seconds for reading in self.rounds)

    def rate(self) -> float:
        """Returns the tokens per second."""
        return self.tokens / self.seconds()

    def ratio(self, other: "Timed") -> float:
        """Returns the median over rounds of the time relative to another contender's."""
        return statistics.median(
            a.seconds / b.seconds for a, b in zip(self.rounds, other.rounds, strict=True)
        )

    def system_share(self) -> float | None:
        """Returns the kernel's share of the processor time; None if that time is 0."""
        user, system = (
            sum(getattr(reading, kind) for reading in self.rounds) for kind in ("user", "system")
        )
        return system / (user + system) if user + system > 0 else None

    def summary(self) -> dict:
        derived = {
            "seconds": self.seconds(),
            "tokens_per_second": self.rate(),
            "system_share": self.system_share(),
        }
        return {**asdict(self), **derived}


def markdown(results: list[Timed]) -> str:
    """Formats a table for each length of the prompt."""
    lengths = dict.fromkeys(timed.tokens for timed in results)
    return "\n".join(
        format_table([timed for timed in results if timed.tokens == length]) for length in lengths
    )


def format_table(results: list[Timed]) -> str:
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
        cells.append(f"{timed.ratio(ours):.2f}" if ours else "")
        cells.append("" if share is None else f"{share:.1%}")
        cells.append(f"`{timed.answer!r}`".replace("|", "\\|"))
        lines.append(row(cells))
    return "\n".join(lines)


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


LEGEND = """
seconds: time to read the prompt, up to the logits of its last token, without loading; median over
rounds. x ours: this time divided by that of vattention, median over rounds; above 1, vattention is
faster. system time: share of the processor time that is the kernel's; for vattention, of the whole
process with loading. next token: likeliest token after the prompt."""
