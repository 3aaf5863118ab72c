"""Shapes of the measurements: numbers of sequences and tokens."""

from dataclasses import dataclass

KV_HEADS = 8
GROUP = 4
"""Number of query heads per KV head."""
DIM = 128
"""Dimension of keys and values, which are in bf16."""
STEPS = [10, 20]
"""Densities of the token lists, as numbers of tokens per listed token."""
LEAST = max(STEPS)


@dataclass(frozen=True)
class Shape:
    """Batch of sequences of one length, with one query token each."""

    batch: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.tokens}"

    @property
    def lists(self) -> int:
        """Number of KV heads of all sequences; each has its own rows and token list."""
        return self.batch * KV_HEADS

    @property
    def query_heads(self) -> int:
        """Number of query heads of all sequences."""
        return self.lists * GROUP

    def row_bytes(self, step: int) -> int:
        """Returns the bytes of keys and values of one token in `step`, for all KV heads."""
        return self.lists * (self.tokens // step) * 2 * DIM * 2


def shapes(text: str) -> list[Shape]:
    """Parses `BATCHxTOKENS,...`."""
    found = []
    for part in text.split(","):
        batch, _, tokens = part.partition("x")
        if not (batch.isdecimal() and tokens.isdecimal()) or int(batch) < 1 or int(tokens) < LEAST:
            raise ValueError(
                f"expected BATCHxTOKENS with at least {LEAST} tokens, such as 8x131072, "
                f"got {part!r}"
            )
        found.append(Shape(int(batch), int(tokens)))
    return found
