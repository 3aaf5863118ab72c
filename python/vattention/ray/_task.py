"""What a worker does for a shard. The driver sends this module with each task, so it imports nothing of the package that the worker might lack."""

import hashlib
import importlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

# How often a task looks whether it was cancelled, in seconds.
_PATIENCE = 0.2


class Input(TypedDict):
    """A file that the command reads."""

    path: str
    size: int
    sha256: str


class Job(TypedDict):
    """What all shards of a command share."""

    command: list[str]
    shards: int
    folder: str
    inputs: list[Input]
    version: str
    threads: int


class Outcome(TypedDict):
    """What came of a shard. Without a `problem`, `header` is the line that says what results depend on, and `lines` are new results.

    A problem that is `transient` may not be there when the shard is computed again.
    """

    node: str
    header: bytes
    lines: bytes
    problem: str | None
    transient: bool


def run_shard(job: Job, shard: int, results: bytes, node: str) -> Outcome:
    """Runs a shard, where `results` are known, on the node that is called so."""
    problem = check_version(job["version"]) or check_inputs(job["folder"], job["inputs"])
    if problem:
        return _failed(node, problem)
    with tempfile.TemporaryDirectory(prefix="vattention-") as temporary:
        path = Path(temporary) / "results.jsonl"
        path.write_bytes(results)
        words = [*job["command"], "--results", str(path), "--shard", f"{shard}/{job['shards']}"]
        code, said = _run(words, job["folder"], job["threads"])
        if code < 0:
            problem = f"the command died of signal {-code}; a system that is out of memory sends 9\n{said}"
            return _failed(node, problem.rstrip(), transient=True)
        if code != 0:
            return _failed(node, said.strip() or f"the command ended with exit code {code}")
        found = path.read_bytes()
    # The first line says whose share it is; the others stay as they were.
    header, found = _split(found)
    known = _split(results)[1]
    if not header or not found.startswith(known):
        return _failed(
            node, "a bug in vattention, please report it: the shard changed results that were known"
        )
    return {
        "node": node,
        "header": header,
        "lines": found[len(known) :],
        "problem": None,
        "transient": False,
    }


def _failed(node: str, problem: str, transient: bool = False) -> Outcome:
    return {"node": node, "header": b"", "lines": b"", "problem": problem, "transient": transient}


def _split(results: bytes) -> tuple[bytes, bytes]:
    """The first line, and the others."""
    end = results.find(b"\n") + 1
    return results[:end], results[end:]


def run_shard_of_ray(job: Job, shard: int, results: bytes) -> Outcome:
    """Runs a shard in a worker of Ray's."""
    ray: Any = importlib.import_module("ray")
    node = f"{socket.gethostname()} ({ray.util.get_node_ip_address()}, {ray.get_runtime_context().get_node_id()[:8]})"
    return run_shard(job, shard, results, node)


def check_version(expected: str) -> str | None:
    """What is wrong with the version that is installed here."""
    try:
        from vattention import _vattention
    except ImportError as error:
        return f"vattention cannot be imported by {sys.executable} ({error}); expected vattention {expected}, as on the driver"
    found = getattr(_vattention, "VERSION", "of another version")
    return (
        None
        if found == expected
        else f"vattention {found} is installed; expected {expected}, as on the driver"
    )


def check_inputs(folder: str, inputs: list[Input]) -> str | None:
    """What is wrong with the files here, which the driver found so."""
    if not os.path.isdir(folder):
        return f"{folder} is not there; expected the folder that the driver runs in"
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
            return f"{path}: is another file than the driver's: {size} bytes, expected {expected['size']} with SHA-256 {expected['sha256'][:16]}…"
    return None


# By path and what changes with a file: a worker's next task need not read all of a model again.
_digests: dict[tuple[str, int, int, int], str] = {}


def digest(path: str) -> str:
    """SHA-256 of all bytes of a file."""
    state = os.stat(path)
    key = (path, state.st_ino, state.st_size, state.st_mtime_ns)
    if key not in _digests:
        with open(path, "rb") as file:
            _digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _digests[key]


def _run(command: list[str], folder: str, threads: int) -> tuple[int, str]:
    """Runs the command in a process of its own, which ends with this one, and returns its exit code and what it said is wrong."""
    # Standard output goes nowhere: a shard prints no table.
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vattention.ray._child", *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:
            # A cancelled task is told by an exception, which comes only between Python's own steps.
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
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace")
