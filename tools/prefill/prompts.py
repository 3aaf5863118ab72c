"""Prompts with an exact number of tokens."""

from collections.abc import Callable

from fetching import Failed

from .contenders import Prompt

TRIES = 100


def cut(
    text: str, tokens: int, encode: Callable[[str], list[int]], decode: Callable[[list[int]], bytes]
) -> Prompt:
    """Returns a part of the text with exactly this number of tokens, if possible its beginning.

    A part cut between two tokens may have other tokens when it is encoded without the rest of the
    text. Then the part begins a word later.
    """
    for _ in range(TRIES):
        ids = encode(text)
        if len(ids) < tokens:
            raise Failed(f"the text has {len(ids)} tokens here, expected at least {tokens}")
        part = decode(ids[:tokens]).decode("utf-8", errors="ignore")
        if encode(part) == ids[:tokens]:
            return Prompt(part, ids[:tokens])
        text = text.lstrip().partition(" ")[2]
    raise Failed(f"none of {TRIES} parts of the text has exactly {tokens} tokens")
