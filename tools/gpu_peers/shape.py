"""What is measured: how many sequences, of how many tokens."""

from dataclasses import dataclass

KV_HEADS = 8
GROUP = 4
"""Query heads of a KV head."""
DIM = 128
"""Numbers of a key, and of a value, in bf16."""
STEPS = [10, 20]
"""Lists have one token in so many."""
LEAST = max(STEPS)


@dataclass(frozen=True)
class Shape:
    """Sequences that are attended to together, one query token each."""

    batch: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.tokens}"

    @property
    def lists(self) -> int:
        """KV heads of all sequences: each has rows and a list of its own."""
        return self.batch * KV_HEADS

    @property
    def query_heads(self) -> int:
        """Of all sequences."""
        return self.lists * GROUP

    def row_bytes(self, step: int) -> int:
        """Keys and values of one token in `step` of each KV head."""
        return self.lists * (self.tokens // step) * 2 * DIM * 2


def shapes(text: str) -> list[Shape]:
    """Reads `BATCHxTOKENS,...`; argparse's type for --shapes."""
    found = []
    for part in text.split(","):
        batch, _, tokens = part.partition("x")
        if not (batch.isdecimal() and tokens.isdecimal()) or int(batch) < 1 or int(tokens) < LEAST:
            raise ValueError(
                f"expected BATCHxTOKENS with {LEAST} tokens at least, such as 8x131072, got {part!r}"
            )
        found.append(Shape(int(batch), int(tokens)))
    return found
