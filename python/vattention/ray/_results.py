"""The file that results are kept in, as they come: whole lines, so that a driver that was killed goes on.

The first line says what the results depend on, and whose share they are; those here are of all shards.
"""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType


class Refused(Exception):
    """A file does not take results, or not these."""


class Results:
    """A file of results, held by one driver at a time.

    Raises OSError if it cannot be read and written, Refused if another driver holds it, or if something else is in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "a+b")
        try:
            self.lines = self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> bytes:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"--results {self.path}: another driver keeps its results there"
            ) from None
        self._file.seek(0)
        text = self._file.read()
        lines = text.splitlines(keepends=True)
        if any(not line.startswith(b"{") for line in lines):
            raise Refused(f"--results {self.path}: expected results that vattention kept")
        if lines and not lines[-1].endswith(b"\n"):
            # An interruption cut it.
            self._file.truncate(len(text) - len(lines.pop()))
        return b"".join(lines)

    @property
    def count(self) -> int:
        """How many are known."""
        return max(self.lines.count(b"\n") - 1, 0)

    def append(self, header: bytes, lines: bytes) -> None:
        """Keeps new lines of a shard, whose first line is `header`.

        Raises Refused if they depend on other files than those that are known.
        """
        if not self.lines:
            lines = _of_all_shards(header) + lines
        elif changed := _changed(self.lines[: self.lines.index(b"\n")], header):
            raise Refused(
                f"what was read is not what other results depend on: {', '.join(changed)}; expected the same on all nodes"
            )
        self._file.write(lines)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines += lines

    def replace(self, path: Path) -> None:
        """Puts another file in the place of this one, which keeps nothing any more."""
        os.replace(path, self.path)

    def __enter__(self) -> "Results":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _changed(known: bytes, header: bytes) -> list[str]:
    """The inputs whose digests differ."""
    there, here = (json.loads(line)["inputs"] for line in (known, header))
    return [name for name in there | here if there.get(name) != here.get(name)]


def _of_all_shards(header: bytes) -> bytes:
    return (
        json.dumps(
            {**json.loads(header), "shard": None}, ensure_ascii=False, separators=(",", ":")
        ).encode()
        + b"\n"
    )
