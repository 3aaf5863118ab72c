"""Tests that the Python programs in README.md and docs/python.md run in the root folder."""

import re
import subprocess
import sys

import pytest
from shared import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(program):
    """Runs a program in the repository's root folder, and returns its output."""
    command = [sys.executable, "-P", "-"]
    ran = subprocess.run(command, input=program, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "past_key_values" not in ran.stderr, "a deprecated name"
    return ran.stdout


def blocks(page):
    found = BLOCK.findall((ROOT / page).read_text())
    assert found
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_blocks_run(page):
    pytest.importorskip("transformers")
    pytest.importorskip("pandas")
    printed = run("\n".join(blocks(page)))
    if page == "README.md":
        assert printed.startswith("2998500 .\n"), printed
        assert "% of the tokens read, mean error 0.0" in printed, printed


def test_the_first_block_needs_no_pandas():
    pytest.importorskip("transformers")
    without = "import sys\nsys.modules.update(pandas=None)\n"
    assert "% read" in run(without + blocks("docs/python.md")[0])
