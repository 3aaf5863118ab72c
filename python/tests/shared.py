"""Data and functions that several tests share."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vattention import Attention, Pipeline

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
TRACE = ROOT / "data" / "smollm2.safetensors"
RECALL = ROOT / "models" / "recall"

DENSE = Pipeline.parse("", name="dense")

PROMISE = """
[[selectors]]
type = "sink"
size = 8

[estimator]
type = "ratio"
epsilon = 0.2
delta = 0.1
"""

QUERY_HEADS, KV_HEADS, DIM = 4, 2, 16


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def filled(pipeline: Pipeline = DENSE, tokens: int = 100, **options: object) -> Attention:
    """Returns an `Attention` with `tokens` random tokens, whose values have a mean of 1."""
    attention = Attention(pipeline, QUERY_HEADS, KV_HEADS, DIM, **options)  # type: ignore[arg-type]
    attention.append(
        normal(KV_HEADS, tokens, DIM, seed=1), 1 + normal(KV_HEADS, tokens, DIM, seed=2)
    )
    return attention


def exact(queries: NDArray[np.float32], tokens: int = 100) -> NDArray[np.float64]:
    """Returns the exact attention of queries to the tokens of `filled`."""
    group = QUERY_HEADS // KV_HEADS
    keys = normal(KV_HEADS, tokens, DIM, seed=1).repeat(group, axis=0).astype(np.float64)
    values = 1 + normal(KV_HEADS, tokens, DIM, seed=2).repeat(group, axis=0).astype(np.float64)
    weights = np.exp(queries @ keys.transpose(0, 2, 1) / np.sqrt(DIM))
    output: NDArray[np.float64] = weights @ values / weights.sum(-1, keepdims=True)
    return output
