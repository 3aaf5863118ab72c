"""Properties of a KV cache."""

from dataclasses import dataclass
from enum import Enum

import torch


class KVCacheLayout(Enum):
    """Order in memory of the dimensions of a pool `[layers, blocks, heads, rows, numbers]`."""

    LBHNC = (0, 1, 2, 3, 4)
    LBNHC = (0, 1, 3, 2, 4)


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    sliding_window: int | None = None
