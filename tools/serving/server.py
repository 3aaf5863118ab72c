"""The server under test: `vattention serve` as a process on a free port of the loopback interface.

This module needs the standard library alone.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECALL = ROOT / "models" / "recall"
TEMPLATE = Path(__file__).with_name("recall.jinja")
PRIORITY = ROOT / "configs" / "priority.toml"
ADDRESS = re.compile(r"http://[0-9.]+:\d+")


def find_binary() -> Path:
    """Returns the path of the command: VATTENTION, or the release build."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return Path(os.environ.get("VATTENTION", target / "release" / "vattention"))


class ServerError(Exception):
    """Error of the server's start, with its output."""


class Server:
    """Running server; `address` is its URL without a final slash."""

    def __init__(self, *options: str | Path, binary: Path | None = None) -> None:
        self.output = tempfile.TemporaryFile("w+")
        command = [binary or find_binary(), "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )
        try:
            self.address = self._wait_for_address()
        except BaseException:
            self.stop()
            raise

    def _wait_for_address(self) -> str:
        for _ in range(1200):
            found = ADDRESS.search(self.read_output())
            if found:
                return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise ServerError(f"the server printed no address:\n{self.read_output()}")

    def read_output(self) -> str:
        self.output.seek(0)
        return self.output.read()

    def read_resident_bytes(self) -> int:
        """Returns the resident memory of the process, as Linux reports it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])

    def read_metrics(self, key: str | None = None) -> dict[str, float]:
        """Returns the values of /metrics by name, labels included."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(f"{self.address}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            lines = response.read().decode().splitlines()
        samples = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in samples}

    def post(self, path: str, body: dict) -> dict:
        """Posts a JSON body, and returns the answer."""
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers)
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)

    def stop(self) -> int:
        """Stops the server by SIGTERM, and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.output.close()


def start_with_key(key: str, *options: str | Path) -> Server:
    """Starts a server of the small model that accepts one API key."""
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write(f"{key}\n")
        keys.flush()
        return Server(*recall_options(), "--api-key-file", keys.name, *options)


def recall_options() -> list[str | Path]:
    """Returns options for the small model of the repository, dense and with `priority`."""
    pipeline = f"priority={PRIORITY}"
    return ["--model", RECALL, "--template", TEMPLATE, "--pipeline", pipeline]
