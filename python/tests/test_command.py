"""Tests that the package's `vattention` command behaves as the Rust program."""

import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from shared import CONFIGS, RECALL, TRACE

from vattention import _vattention

COMMAND = [sys.executable, "-P", "-m", "vattention"]

# Time limit that only a hanging command exceeds, even on a busy machine.
PATIENCE = 600


def run(*words):
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE
    )


def test_version():
    assert run("--version").stdout == f"vattention {_vattention.VERSION}\n"
    assert "with models" in _vattention.VERSION


def test_exit_codes():
    assert run("check", CONFIGS / "quest.toml").returncode == 0
    wrong = run("compare", "no-such-file.toml", "--trace", TRACE)
    assert wrong.returncode == 2 and "no-such-file.toml" in wrong.stderr and not wrong.stdout
    usage = run("no-such-command")
    assert usage.returncode == 2 and "unrecognized subcommand" in usage.stderr
    words = [
        "verify",
        CONFIGS / "vattention-oracle.toml",
        "--trace",
        TRACE,
        "--set",
        "estimator.epsilon=0.2",
    ]
    undecided, held = (run(*words, "--trials", trials) for trials in ("8", "2000"))
    assert (undecided.returncode, held.returncode) == (3, 0)
    assert "\nundecided: " in undecided.stdout and "\nheld: " in held.stdout


def wait_until_interruptible(process):
    """Waits until the command handles SIGTERM, which Python itself does not handle."""
    status = Path(f"/proc/{process.pid}/status")
    while True:
        caught = next(
            line for line in status.read_text().splitlines() if line.startswith("SigCgt:")
        )
        if int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1):
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads which signals a process catches")
def test_ctrl_c(tmp_path):
    words = [
        "verify",
        CONFIGS / "vattention-oracle.toml",
        "--trace",
        TRACE,
        "--trials",
        "100000000",
        "--json",
        tmp_path / "verdict.json",
    ]
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until_interruptible(process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert b"nothing was stored. With --results FILE" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="ends the server by SIGTERM")
def test_serve():
    words = ["serve", "--model", RECALL, "--name", "recall", "--port", "0"]
    process = subprocess.Popen([*COMMAND, *map(str, words)], stderr=subprocess.PIPE, text=True)
    try:
        ready = process.stderr.readline()
        address = ready[ready.index("http://") :].split(";")[0].strip()
        with urllib.request.urlopen(f"{address}/v1/models", timeout=PATIENCE) as reply:
            assert '"recall@dense"' in reply.read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE) == 0
    finally:
        process.kill()
