"""Names of entries on the command line."""

from dataclasses import dataclass

DTYPES = ["f32", "f16", "bf16"]


@dataclass(frozen=True)
class Choice:
    """Entry `NAME[+KEY=VALUE...]` in one precision."""

    name: str
    settings: tuple[str, ...]
    dtype: str

    def __str__(self) -> str:
        return "+".join([self.name, *self.settings]) + f"@{self.dtype}"


def choices(text: str) -> list[Choice]:
    """Parses `NAME[+KEY=VALUE...][@DTYPE,...]`; the default precision is bf16."""
    name, _, dtypes = text.partition("@")
    name, *settings = name.split("+")
    found = [Choice(name, tuple(settings), dtype) for dtype in (dtypes or "bf16").split(",")]
    for choice in found:
        if choice.dtype not in DTYPES:
            raise ValueError(f"{text}: expected one of {', '.join(DTYPES)} after @")
    return found
