"""A selector of your own, in Python: tried against the laws of selectors, and compared on the trace that the repository has.

It is slow, and for trying out ideas. What is worth it is then a file of Rust (docs/embedding.md).
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
    """The tokens whose keys have most signs in common with the query, among the dimensions where it is largest."""

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
    for one in found["pipelines"]:
        print(
            f"{one['pipeline']:>28}: {one['density']:6.1%} read, mean error {one['output_error']['mean']:.4f}"
        )


if __name__ == "__main__":
    main()
