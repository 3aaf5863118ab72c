"""Pipelines in `pickle`, stored as the text of an equivalent file."""

import copyreg
from collections.abc import Callable

from vattention._vattention import Pipeline


def _read(text: str) -> Pipeline:
    return Pipeline.parse(text)


def _reduce(pipeline: Pipeline) -> tuple[Callable[[str], Pipeline], tuple[str]]:
    return _read, (pipeline.to_toml(),)


def register() -> None:
    """Enables `pickle` for pipelines; loading needs the same working folder if they name files."""
    copyreg.pickle(Pipeline, _reduce)
