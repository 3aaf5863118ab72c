"""The `vattention` command that the package brings is the program."""

import os
import signal
import subprocess
import sys
import time

import pytest
from shared import CONFIGS, TRACE

from vattention import _vattention

COMMAND = [sys.executable, "-P", "-m", "vattention._command"]


def run(*words):
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=60)


def test_version():
    assert run("--version").stdout == f"vattention {_vattention.VERSION}\n"
    assert "with models" in _vattention.VERSION


def test_exit_codes():
    assert run("check", CONFIGS / "quest.toml").returncode == 0
    wrong = run("compare", "no-such-file.toml", "--trace", TRACE)
    assert wrong.returncode == 2 and "no-such-file.toml" in wrong.stderr and not wrong.stdout
    usage = run("no-such-command")
    assert usage.returncode == 2 and "unrecognized subcommand" in usage.stderr
    words = ["verify", CONFIGS / "vattention-oracle.toml", "--trace", TRACE, "--set", "estimator.epsilon=0.2"]
    undecided, held = (run(*words, "--trials", trials) for trials in ("8", "2000"))
    assert (undecided.returncode, held.returncode) == (3, 0)
    assert "\nundecided: " in undecided.stdout and "\nheld: " in held.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c(tmp_path):
    words = ["verify", CONFIGS / "vattention-oracle.toml", "--trace", TRACE, "--trials", "1000000", "--json", tmp_path / "verdict.json"]
    process = subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
