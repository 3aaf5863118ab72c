"""Work of a Ray worker for one shard.

The driver sends this module with each task. The worker may lack the package, so the module does
not import the package at its top level.
"""

import hashlib
import importlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

# Interval between two checks for a cancelled task, in seconds.
_PATIENCE = 0.2


class Input(TypedDict):
    """Input file of the command; paths are relative to the driver's working folder."""

    path: str
    size: int
    sha256: str


class Job(TypedDict):
    """Work that all shards of a command have in common."""

    command: list[str]
    shards: int
    folder: str
    inputs: list[Input]
    version: str
    threads: int


class Outcome(TypedDict):
    """Outcome of a shard's task: new results or a problem.

    Without a `problem`, `header` is the first line of a file of results, and `lines` are the new
    results. If the problem is `transient`, computing the shard again may succeed.
    """

    node: str
    header: bytes
    lines: bytes
    problem: str | None
    transient: bool


def run_shard(job: Job, shard: int, results: bytes, node: str) -> Outcome:
    """Computes those results of a shard that are not in `results`; `node` is for messages."""
    problem = check_version(job["version"]) or check_inputs(job["folder"], job["inputs"])
    if problem:
        return _failed(node, problem)
    with tempfile.TemporaryDirectory(prefix="vattention-") as temporary:
        path = Path(temporary) / "results.jsonl"
        path.write_bytes(results)
        words = [*job["command"], "--results", str(path), "--shard", f"{shard}/{job['shards']}"]
        code, errors = _run(words, job["folder"], job["threads"])
        if code < 0:
            problem = (
                f"the command died of signal {-code} "
                f"(a system that is out of memory sends 9)\n{errors}"
            )
            return _failed(node, problem.rstrip(), transient=True)
        if code != 0:
            return _failed(node, errors.strip() or f"the command ended with exit code {code}")
        written = path.read_bytes()
    # The first line names the shard; the command must have left the other lines unchanged.
    header, written = _split(written)
    earlier = _split(results)[1]
    if not header or not written.startswith(earlier):
        return _failed(
            node, "a bug in vattention, please report it: the shard changed earlier results"
        )
    return {
        "node": node,
        "header": header,
        "lines": written[len(earlier) :],
        "problem": None,
        "transient": False,
    }


def _failed(node: str, problem: str, transient: bool = False) -> Outcome:
    return {"node": node, "header": b"", "lines": b"", "problem": problem, "transient": transient}


def _split(results: bytes) -> tuple[bytes, bytes]:
    """Splits a file of results into its first line and the others."""
    end = results.find(b"\n") + 1
    return results[:end], results[end:]


def run_shard_of_ray(job: Job, shard: int, results: bytes) -> Outcome:
    """Runs `run_shard` in a Ray worker."""
    ray: Any = importlib.import_module("ray")
    address = ray.util.get_node_ip_address()
    identity = ray.get_runtime_context().get_node_id()[:8]
    node = f"{socket.gethostname()} ({address}, {identity})"
    return run_shard(job, shard, results, node)


def check_version(expected: str) -> str | None:
    """Returns a message if the installed version differs from the driver's."""
    try:
        from vattention import _vattention
    except ImportError as error:
        return (
            f"vattention cannot be imported by {sys.executable} ({error}); "
            f"expected vattention {expected}, as on the driver"
        )
    found = getattr(_vattention, "VERSION", "of another version")
    if found == expected:
        return None
    return f"vattention {found} is installed; expected {expected}, as on the driver"


def check_inputs(folder: str, inputs: list[Input]) -> str | None:
    """Returns a message if an input file of this node differs from the driver's."""
    if not os.path.isdir(folder):
        return f"{folder} does not exist; expected the working folder of the driver"
    for expected in inputs:
        path = os.path.join(folder, expected["path"])
        try:
            size = os.stat(path).st_size
            same = size == expected["size"] and digest(path) == expected["sha256"]
        except OSError as error:
            return (
                f"{path}: {error.strerror}; expected the driver's file of {expected['size']} bytes"
            )
        if not same:
            return (
                f"{path}: differs from the driver's file: {size} bytes, "
                f"expected {expected['size']} with SHA-256 {expected['sha256'][:16]}…"
            )
    return None


# Digests by path, inode, size and modification time, so that a worker's next task need not read a
# whole model again.
_digests: dict[tuple[str, int, int, int], str] = {}


def digest(path: str) -> str:
    """Returns the SHA-256 of a file, from a cache if the file is unchanged."""
    state = os.stat(path)
    key = (path, state.st_ino, state.st_size, state.st_mtime_ns)
    if key not in _digests:
        with open(path, "rb") as file:
            _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _digests[key]


def _run(command: list[str], folder: str, threads: int) -> tuple[int, str]:
    """Runs the command in a child process, which exits when this process does.

    Returns the exit code and the text of standard error.
    """
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vattention.ray._child", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        try:
            # Ray cancels a task by an exception, which only Python code can receive, so a single
            # long wait would block it.
            while True:
                try:
                    process.wait(_PATIENCE)
                    break
                except subprocess.TimeoutExpired:
                    pass
        finally:
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()
        errors.seek(0)
        return process.returncode, errors.read().decode(errors="replace")
