"""Tests of the rules that every selector must obey."""

from vattention._vattention import Pipeline, broken_law

__all__ = ["laws"]


def laws(pipeline: Pipeline, selector: int = 0, *, cases: int = 64) -> None:
    """Tests the laws of selectors on one selector of a pipeline.

    `selector` is the index of the selector in the pipeline, from 0. Each law is tested on a fixed
    set of small heads and on `cases` generated heads, which are the same on every run. The laws
    also hold for native selectors. The most important laws:

    - Equal calls of `select` return equal tokens.
    - Appending tokens in one call or in several calls gives the same picks.
    - A fork continues as the original would, and does not change the original.
    - Tokens that earlier selectors picked stay picked.
    - Tokens that a row may not read do not change its picks.

    Cost: about 10 000 calls of `select` for 64 cases, some seconds for a selector in Python.

    Raises AssertionError with the broken law, the smallest head that breaks it, and the exception
    that the selector raised, if any.
    """
    broken = broken_law(pipeline, selector, cases)
    if broken is not None:
        law, found = broken
        raise AssertionError(f"the law `{law}` is broken: {found}")
