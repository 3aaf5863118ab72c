"""What the get_*.py scripts share: run a tool, check a digest, write a file whole or not at all.

Only the standard library, because nothing is installed yet where they run.
"""

import hashlib
import os
import subprocess
from pathlib import Path


class Failed(Exception):
    """A step did not work; the message says which, and what was expected."""


def run(command: list, **options) -> bytes:
    """What a command prints; its last words where it fails."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}")
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
        raise Failed(f"{' '.join(command[:4])} failed:\n{said}")
    return done.stdout


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}; expected a file that can be read")
    return found.hexdigest()


def is_there(path: Path, expected: str) -> bool:
    """Whether the file is there; one with another digest is an error, and left as it is."""
    if not (path.exists() or path.is_symlink()):
        return False
    expect_digest(path, expected)
    return True


def expect_digest(path: Path, expected: str, name: str | None = None) -> None:
    found = digest(path)
    if found != expected:
        raise Failed(f"{name or path}: SHA-256 {found}, expected {expected}")


def place(path: Path, chunks, expected: str) -> None:
    """Writes the chunks of bytes beside, checks the digest, renames; makes the folder."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
        expect_digest(beside, expected, str(path))
        os.replace(beside, path)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}; expected a file that can be written")
    finally:
        if path.parent.is_dir():
            beside.unlink(missing_ok=True)
