"""Example: a selector in Python, tested by the laws of selectors and compared on the shipped trace.

Python selectors are slow, and meant for prototypes; docs/embedding.md shows a selector in Rust.
"""

from pathlib import Path

import numpy as np

import vattention
from vattention import Pipeline
from vattention.testing import laws

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "data" / "smollm2.safetensors"


@vattention.selector("sign-codes")
class SignCodes:
    """Picks the tokens whose keys share most signs with the query in its largest dimensions."""

    def __init__(self, share, dimensions=16):
        self.share, self.dimensions = share, dimensions
        self.signs = None  # [tokens, head_dim]

    def append(self, keys):
        new = np.sign(keys).astype(np.int8)
        self.signs = new if self.signs is None else np.concatenate([self.signs, new])

    def select(self, query, visible, taken):
        strongest = np.argsort(-np.abs(query), kind="stable")[: self.dimensions]
        scores = self.signs[:visible, strongest] @ np.sign(query[strongest])
        scores[taken] = -np.inf
        return np.argsort(-scores, kind="stable")[: int(self.share * visible)]


COMPOSED = """
[[selectors]]
type = "sink"
size = 16

[[selectors]]
type = "window"
size = 64

[[selectors]]
type = "python"
name = "sign-codes"
settings = { share = 0.05 }
"""

PROMISE = """
[estimator]
type = "ratio"
epsilon = 0.1
delta = 0.1
"""


def main():
    alone = Pipeline.parse(COMPOSED, name="sign codes")
    laws(alone, selector=2)
    print("sign codes obey the laws of selectors")
    promised = Pipeline.parse(COMPOSED + PROMISE, name="sign codes, and a sample")
    found = vattention.compare(
        [alone, promised, ROOT / "configs" / "streaming-llm.toml"], TRACE, queries=4
    )
    for entry in found["pipelines"]:
        error = entry["output_error"]["mean"]
        print(f"{entry['pipeline']:>28}: {entry['density']:6.1%} read, mean error {error:.4f}")


if __name__ == "__main__":
    main()
