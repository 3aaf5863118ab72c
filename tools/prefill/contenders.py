"""Contenders that read prompts: this program as a command, others in long-running processes."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from fetching import Failed

from .table import OURS, Reading

WORKER = Path(__file__).with_name("worker.py")
WARM_UP = 64


class Prompt:
    """Text with its tokens."""

    def __init__(self, text: str, tokens: list[int]) -> None:
        self.text, self.tokens = text, tokens


class Ours:
    """Contender `vattention generate`, which starts for each reading and reports its own time.

    The reported time excludes loading. The processor time includes loading and the digests of the
    model's files for `--json`.
    """

    name = OURS

    def __init__(self, binary: Path, model: Path, pipeline: Path, threads: int) -> None:
        self.command = [
            binary,
            "generate",
            "--model",
            model,
            "--pipeline",
            pipeline,
            "--tokens",
            "1",
        ]
        self.environment = {**os.environ, "RAYON_NUM_THREADS": str(threads)}

    def read(self, prompt: Prompt) -> tuple[Reading, str]:
        """Reads a prompt, and returns the times and the text of the next token."""
        with tempfile.TemporaryDirectory() as folder:
            text, report = Path(folder) / "prompt.txt", Path(folder) / "report.json"
            text.write_bytes(prompt.text.encode())
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self._run(["--context", text, "--json", report])
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            try:
                found = json.loads(report.read_text())
                count, seconds, answer = (
                    found["tokens"]["context"],
                    found["prefill_seconds"],
                    found["answer"],
                )
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise Failed(
                    f"{self.name}: {error!r} in the file of --json; "
                    "expected prefill_seconds and tokens"
                )
        expect_count(self.name, count, prompt)
        user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        return Reading(float(seconds), user, system), answer

    def _run(self, options: list) -> None:
        command = [str(part) for part in [*self.command, *options]]
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True)
        except OSError as error:
            raise Failed(
                f"{command[0]}: {error.strerror}; "
                "expected the program, built by `cargo build --release`"
            )
        if done.returncode != 0:
            raise Failed(
                f"{command[0]} generate failed:\n{done.stderr.decode(errors='replace').strip()}"
            )

    def close(self) -> None:
        pass


class Peer:
    """Contender in a worker process, which loads the model once and waits for prompts."""

    def __init__(self, name: str, model: Path, threads: int, context: int) -> None:
        self.name = name
        command = [
            sys.executable,
            str(WORKER),
            name,
            str(model.resolve()),
            str(threads),
            str(context),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.errors = tempfile.TemporaryFile()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self._receive()

    def warm_up(self, prompt: Prompt) -> None:
        self._send(prompt.tokens[:WARM_UP])

    def read(self, prompt: Prompt) -> tuple[Reading, int]:
        """Reads a prompt, and returns the times and the next token."""
        found = self._send(prompt.tokens)
        expect_count(self.name, found["tokens"], prompt)
        return Reading(found["seconds"], found["user"], found["system"]), found["next"]

    def _send(self, tokens: list[int]) -> dict:
        try:
            print(json.dumps(tokens), file=self.process.stdin, flush=True)
        except OSError:
            pass  # The process has ended, and _receive raises the reason.
        return self._receive()

    def _receive(self):
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        status = self.process.wait()
        self.errors.seek(0)
        errors = self.errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        raise Failed(f"{self.name} ended with status {status}:\n" + "\n".join(errors[-5:]))

    def close(self) -> None:
        """Ends the worker, if it has not ended yet."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def expect_count(name: str, found: int, prompt: Prompt) -> None:
    expected = len(prompt.tokens)
    if found != expected:
        raise Failed(f"{name} read {found} tokens, expected {expected}, as the other contenders")
