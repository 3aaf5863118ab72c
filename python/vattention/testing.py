"""What a selector must obey, whoever wrote it."""

from vattention._vattention import Pipeline, broken_law

__all__ = ["laws"]


def laws(pipeline: Pipeline, selector: int = 0, *, cases: int = 64) -> None:
    """Tries the laws of selectors on the selector of that place in a pipeline, on small heads and on `cases` others.

    The laws are those of native selectors: asked twice it picks the same; tokens appended at once or in parts give the same picks; a
    fork goes on as the original would, and leaves it alone; what was picked before stays; tokens that a row does not see change nothing.

    Cost: some 10 000 picks for 64 cases, seconds for a selector in Python. Cases are the same on every run.

    Raises AssertionError that names the law that is broken and the smallest head on which it is, and what the selector raised if it did.
    """
    broken = broken_law(pipeline, selector, cases)
    if broken is not None:
        law, found = broken
        raise AssertionError(f"the law `{law}` is broken: {found}")
