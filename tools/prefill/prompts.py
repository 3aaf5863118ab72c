"""Texts of so many tokens exactly."""

from collections.abc import Callable

from fetching import Failed

from .contenders import Prompt

TRIES = 100


def cut(
    text: str, tokens: int, encode: Callable[[str], list[int]], decode: Callable[[list[int]], bytes]
) -> Prompt:
    """A part of the text, from its beginning on if possible, that is so many tokens.

    Not every cut between tokens is one that the tokenizer makes again without the rest: where it does not,
    the part begins a word later.
    """
    for _ in range(TRIES):
        ids = encode(text)
        if len(ids) < tokens:
            raise Failed(f"the text has {len(ids)} tokens here, expected at least {tokens}")
        part = decode(ids[:tokens]).decode("utf-8", errors="ignore")
        if encode(part) == ids[:tokens]:
            return Prompt(part, ids[:tokens])
        text = text.lstrip().partition(" ")[2]
    raise Failed(f"no part of the text is {tokens} tokens exactly, of {TRIES} that were tried")
