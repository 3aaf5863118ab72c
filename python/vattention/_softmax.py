"""Dense attention with soft caps and attention sinks, which torch's function does not have."""

import torch

_ROWS = 256
"""Number of queries whose logits are computed together."""


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    soft_cap: float | None,
    sink_logits: torch.Tensor | None,
) -> torch.Tensor:
    """Computes attention in f32, `[batch, queries, query_heads, value_dim]`.

    `query` is `[batch, query_heads, queries, head_dim]`; keys and values have `kv_heads`. Without a
    mask, the last query sees all tokens, and each one before it one token fewer. `sink_logits` are
    `[query_heads]`.
    """
    batch, heads, count, dim = query.shape
    kv_heads, tokens = key.shape[1], key.shape[2]
    group = heads // kv_heads
    scaled = query.float() * (dim**-0.5 if scale is None else scale)
    scaled = scaled.reshape(batch, kv_heads, group, count, dim)
    keys, values = key.float()[:, :, None], value.float()[:, :, None]
    outputs = []
    for first in range(0, count, _ROWS):
        logits = scaled[:, :, :, first : first + _ROWS] @ keys.transpose(-1, -2)
        if soft_cap is not None:
            logits = soft_cap * torch.tanh(logits / soft_cap)
        rows = logits.shape[3]
        logits = logits.reshape(batch, heads, rows, tokens)
        logits = _hide(logits, mask, first, count)
        if sink_logits is not None:
            sinks = sink_logits.float().reshape(1, heads, 1, 1).expand(batch, heads, rows, 1)
            logits = torch.cat([logits, sinks], dim=-1)
        weights = logits.softmax(-1)[..., :tokens].reshape(batch, kv_heads, group, rows, tokens)
        outputs.append((weights @ values).reshape(batch, heads, rows, -1))
    return torch.cat(outputs, dim=2).transpose(1, 2).to(query.dtype).contiguous()


def _hide(logits: torch.Tensor, mask: torch.Tensor | None, first: int, count: int) -> torch.Tensor:
    """Hides the tokens that the queries from `first` on, of `count`, do not see."""
    rows, tokens = logits.shape[2:]
    hidden = torch.finfo(logits.dtype).min  # A query that sees nothing, of padding, needs a number.
    if mask is None:
        positions = torch.arange(tokens, device=logits.device)
        last_seen = positions[tokens - count + first : tokens - count + first + rows]
        return logits.masked_fill(positions > last_seen[:, None], hidden)
    part = mask[:, :, first : first + rows]
    return logits.masked_fill(~part, hidden) if part.dtype == torch.bool else logits + part
