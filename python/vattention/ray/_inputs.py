"""What the command reads, and its digests: a task compares them with the files on its node."""

import os
from collections.abc import Iterator
from pathlib import Path

from vattention._vattention import files_of
from vattention.ray._task import Input, digest

# What is read of the folder of a model or a benchmark.
_OF_FOLDERS = {".json", ".jinja", ".jsonl", ".parquet", ".safetensors"}


def find_inputs(command: list[str]) -> list[Input]:
    """The files among a command's words, those of a folder, and those that pipelines and grids are read from."""
    paths = dict.fromkeys(path for word in command for path in _files(word))
    return [{"path": path, "size": os.stat(path).st_size, "sha256": digest(path)} for path in paths]


def _files(word: str) -> Iterator[str]:
    """The files that a word names, as itself or after an equals sign."""
    path = Path(word.partition("=")[2] if word.startswith("--") and "=" in word else word)
    if path.is_dir():
        yield from sorted(
            str(file) for file in path.rglob("*") if file.suffix in _OF_FOLDERS and file.is_file()
        )
    elif path.is_file():
        yield str(path)
        if path.suffix == ".toml":
            yield from map(
                str, files_of(path)
            )  # None if something is wrong with it, which the command says.
