"""Tests that Ctrl-C interrupts long calls and leaves objects usable."""

import os
import subprocess
import sys
import textwrap

import pytest
from shared import CONFIGS, TRACE

PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import vattention
sys.path.insert(0, {tests!r})
from shared import filled, normal

{setup}
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell may have disabled it.
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    {call}
except KeyboardInterrupt:
    took = time.perf_counter() - begin
    {after}
    print("interrupted")
"""


# Time limit in seconds, which only a call that ignores Ctrl-C exceeds. Such a call may also end
# within the limit, after the time of all its parts (32 of `study`, 50 of `attend`).
PATIENCE = 600
TIMER = "begin = time.perf_counter(); "
ORACLE = str(CONFIGS / "vattention-oracle.toml")
STUDY = f"vattention.study('tightness', {str(TRACE)!r}, trials=50"


@pytest.mark.parametrize(
    ("setup", "call", "after"),
    [
        (
            "",
            f"vattention.verify({ORACLE!r}, {str(TRACE)!r}, trials=100_000_000)",
            "",
        ),
        (
            "",
            f"vattention.compare([vattention.Pipeline.load({ORACLE!r})] * 20_000, {str(TRACE)!r})",
            "",
        ),
        (
            "",
            f"{STUDY})",
            f"{TIMER}{STUDY}, queries=1); "
            "part = time.perf_counter() - begin; assert took < 16 * part, (took, part)",
        ),
        (
            "a, queries = filled(tokens=50_000), normal(4, 100_000, 16)",
            "a.attend(queries)",
            f"assert len(a) == 50_000; {TIMER}a.attend(normal(4, 2_000, 16)); "
            "part = time.perf_counter() - begin; assert took < 25 * part, (took, part)",
        ),
    ],
    ids=["verify", "compare", "study", "attend"],
)
@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c(setup, call, after):
    tests = os.path.dirname(__file__)
    program = textwrap.dedent(PROGRAM).format(setup=setup, call=call, after=after, tests=tests)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.stdout == "interrupted\n", run.stderr
    assert "panicked" not in run.stderr


def test_exceptions_of_the_progress_callback_rpipelinethe_caller():
    from vattention import Pipeline, Trace, _vattention

    def stop(done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        _vattention.verify(
            Pipeline.load(CONFIGS / "vattention-oracle.toml"),
            Trace(TRACE),
            trials=1_000_000,
            progress=stop,
        )
