"""File of results, which grows by whole lines, so that another driver can continue a killed one.

The first line, the header, has the inputs that results depend on, and the shard. Here the shard is
null, because the file has the results of all shards.
"""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType


class Refused(Exception):
    """Error: a file cannot take results, or the results belong to other inputs."""


class Results:
    """File of results, locked by one driver at a time.

    Raises OSError if the file cannot be read and written, Refused if another driver has locked it
    or if it has other contents.
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
            raise Refused(f"--results {self.path}: another driver is using this file") from None
        self._file.seek(0)
        text = self._file.read()
        lines = text.splitlines(keepends=True)
        if any(not line.startswith(b"{") for line in lines):
            raise Refused(f"--results {self.path}: expected a file of results by vattention")
        if lines and not lines[-1].endswith(b"\n"):
            # The write of the last line was interrupted.
            self._file.truncate(len(text) - len(lines.pop()))
        return b"".join(lines)

    @property
    def count(self) -> int:
        """Number of results in the file."""
        return max(self.lines.count(b"\n") - 1, 0)

    def append(self, header: bytes, lines: bytes) -> None:
        """Appends new lines of a shard, whose first line is `header`.

        Raises Refused if the new results depend on other inputs than those in the file.
        """
        if not self.lines:
            lines = _without_shard(header) + lines
        elif changed := _changed_inputs(self.lines[: self.lines.index(b"\n")], header):
            raise Refused(
                f"the inputs differ from those of earlier results: {', '.join(changed)}; "
                "expected the same inputs on all nodes"
            )
        self._file.write(lines)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines += lines

    def replace(self, path: Path) -> None:
        """Moves another file to the path of this one, after which nothing may be appended."""
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


def _changed_inputs(first: bytes, second: bytes) -> list[str]:
    """Returns the names of the inputs whose digests differ in two headers."""
    there, here = (json.loads(line)["inputs"] for line in (first, second))
    return [name for name in there | here if there.get(name) != here.get(name)]


def _without_shard(header: bytes) -> bytes:
    """Converts a shard's header to the header of a file with the results of all shards."""
    fields = {**json.loads(header), "shard": None}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
