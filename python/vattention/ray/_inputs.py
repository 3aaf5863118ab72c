"""What the command reads, and its digests: a task compares them with the files on its node."""

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

from vattention import Pipeline, PipelineError
from vattention.ray._task import Input, digest

# What is read of a model's folder.
_OF_MODELS = {".json", ".jinja", ".safetensors"}


def find_inputs(command: list[str]) -> list[Input]:
    """The files among a command's words, those of a folder that is a model, and those that pipeline files name."""
    paths = dict.fromkeys(path for word in command for path in _files(word))
    return [{"path": path, "size": os.stat(path).st_size, "sha256": digest(path)} for path in paths]


def _files(word: str) -> Iterator[str]:
    """The files that a word names, as itself or after an equals sign."""
    path = Path(word.partition("=")[2] if word.startswith("--") and "=" in word else word)
    if path.is_dir():
        yield from sorted(str(file) for file in path.iterdir() if file.suffix in _OF_MODELS and file.is_file())
    elif path.is_file():
        yield str(path)
        if path.suffix == ".toml":
            yield from _named(path)


def _named(path: Path) -> Iterator[str]:
    """The files that a pipeline file names, such as what its selectors have learnt."""
    try:
        tree = tomllib.loads(Pipeline.load(path).to_toml())
    except PipelineError:
        return  # The command says what is wrong with it.
    pending: list[object] = [tree]
    while pending:
        match pending.pop():
            case str(text) if os.path.isfile(text):
                yield text
            case list(items):
                pending.extend(items)
            case dict(fields):
                pending.extend(fields.values())
