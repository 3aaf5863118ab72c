"""Dense attention of a prompt's new tokens over pages."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from vattention._softmax import dense_attention

_QUERIES = 256
"""Number of queries that are computed together, which limits the size of a mask."""


def gather(pool: torch.Tensor, blocks: torch.Tensor, tokens: int) -> torch.Tensor:
    """Copies the rows of a sequence, `[kv_heads, tokens, dim]`, from blocks of a pool."""
    return pool.transpose(0, 1)[:, blocks].flatten(1, 2)[:, :tokens]


def attend_to_rows(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    sink_logits: torch.Tensor | None,
) -> torch.Tensor:
    """Computes causal attention of the newest tokens, `[new, query_heads, value_dim]`.

    `query` is `[new, query_heads, head_dim]`. Keys `[kv_heads, tokens, head_dim]` and values
    `[kv_heads, tokens, value_dim]` end with the rows of the new tokens.
    """
    query, keys, values = query.transpose(0, 1)[None], keys[None], values[None]
    if soft_cap is not None or sink_logits is not None:
        return dense_attention(query, keys, values, None, scale, soft_cap, sink_logits)[0]
    new, tokens = query.shape[2], keys.shape[2]
    outputs = []
    for first in range(0, new, _QUERIES):
        part = query[:, :, first : first + _QUERIES]
        count = part.shape[2]
        seen = tokens - new + first + count
        mask = torch.ones(count, seen, dtype=torch.bool).tril(seen - count)
        outputs.append(
            scaled_dot_product_attention(
                part,
                keys[:, :, :seen],
                values[:, :, :seen],
                attn_mask=mask,
                scale=scale,
                enable_gqa=True,
            )
        )
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)
