"""Pipelines in `pickle`: as the text of a file that means the same."""

import copyreg
from collections.abc import Callable

from vattention._vattention import Pipeline


def _read(text: str) -> Pipeline:
    return Pipeline.parse(text)


def _reduce(pipeline: Pipeline) -> tuple[Callable[[str], Pipeline], tuple[str]]:
    return _read, (pipeline.to_toml(),)


def register() -> None:
    """Lets `pickle` save pipelines. Files that they name are found from the same working folder."""
    copyreg.pickle(Pipeline, _reduce)
