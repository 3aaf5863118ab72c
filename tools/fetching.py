"""Functions that the get_*.py scripts share: run a tool, check a digest, write a file atomically.

They need the standard library alone, because the scripts run before packages are installed.
"""

import hashlib
import os
import subprocess
from pathlib import Path


class Failed(Exception):
    """Error of a step, whose message names the step and what was expected."""


def run(command: list, **options) -> bytes:
    """Returns the output of a command; raises Failed with its stderr if it fails."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}")
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip() or f"status {done.returncode}"
        raise Failed(f"{' '.join(command[:4])} failed:\n{reason}")
    return done.stdout


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    sha256 = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                sha256.update(block)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}; expected a file that can be read")
    return sha256.hexdigest()


def is_present(path: Path, expected: str) -> bool:
    """Returns True if the file exists; raises Failed if it has another digest."""
    if not (path.exists() or path.is_symlink()):
        return False
    expect_digest(path, expected)
    return True


def expect_digest(path: Path, expected: str, name: str | None = None) -> None:
    found = digest(path)
    if found != expected:
        raise Failed(f"{name or path}: SHA-256 {found}, expected {expected}")


def place(path: Path, chunks, expected: str) -> None:
    """Writes chunks of bytes to a temporary file, checks its digest, and renames it to the path.

    The folder is made if it does not exist.
    """
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


def find_missing(folder: Path, digests: dict[str, str]) -> list[str]:
    """Returns the names of files that do not exist; raises Failed if a file has another digest."""
    return [name for name, expected in digests.items() if not is_present(folder / name, expected)]


def report(folder: Path, digests: dict[str, str], written: list[str]) -> None:
    """Prints the size of each file, and whether it was written."""
    for name in digests:
        state = "written" if name in written else "unchanged"
        print(f"{folder / name}: {(folder / name).stat().st_size} bytes, {state}")
