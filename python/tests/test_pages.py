"""What README.md and docs/python.md show runs as it stands, from the repository's root."""

import re
import subprocess
import sys

import pytest
from shared import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_blocks_run(page):
    pytest.importorskip("transformers")
    pytest.importorskip("pandas")
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    program = "\n".join(blocks)
    run = subprocess.run([sys.executable, "-P", "-"], input=program, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    if page == "README.md":
        assert run.stdout.startswith("2998500 . ["), run.stdout
