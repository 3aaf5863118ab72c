"""Input files of the command, and the digests with which tasks check the files of their node."""

import os
from collections.abc import Iterator
from pathlib import Path

from vattention._vattention import files_of
from vattention.ray._task import Input, digest

# Suffixes of the files that the command reads from the folder of a model or a benchmark.
_SUFFIXES = {".json", ".jinja", ".jsonl", ".parquet", ".safetensors"}


def find_inputs(command: list[str]) -> list[Input]:
    """Lists the files that the arguments of a command name, directly or indirectly.

    The list has the files of folders, and the files that pipelines and grids refer to.
    """
    paths = dict.fromkeys(path for word in command for path in _files(word))
    return [{"path": path, "size": os.stat(path).st_size, "sha256": digest(path)} for path in paths]


def _files(word: str) -> Iterator[str]:
    """Yields the files that an argument names, by itself or after `--option=`."""
    path = Path(word.partition("=")[2] if word.startswith("--") and "=" in word else word)
    if path.is_dir():
        yield from sorted(
            str(file) for file in path.rglob("*") if file.suffix in _SUFFIXES and file.is_file()
        )
    elif path.is_file():
        yield str(path)
        if path.suffix == ".toml":
            # The result is empty if the file has errors; the command reports these.
            yield from map(str, files_of(path))
