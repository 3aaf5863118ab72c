"""Entry of a straightforward vAttention in PyTorch: top-k, a uniform sample, and gathers."""

import math

import torch

from .data import SCALE, Data, worst_error
from .entry import Ready
from .shape import DIM, Shape


def vattention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, top: int, sample: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attends to the `top` tokens of largest logits per query head, and to a sample of the rest.

    `queries` are `[batch, query_heads, dim]`, `keys` and `values` `[batch, kv_heads, tokens, dim]`.
    `sample` tokens are drawn from all tokens with replacement; drawn top tokens have the weight 0,
    other drawn tokens the weight tokens / sample. Returns the output `[batch, query_heads, dim]`,
    and the tokens and the logarithms of their weights, `[batch, query_heads, top + sample]`.

    Only values are gathered, because the logits of all tokens are known from the top-k.
    """
    batch, kv_heads, tokens, dim = keys.shape
    grouped = queries.view(batch, kv_heads, -1, dim)
    logits = (grouped @ keys.transpose(-1, -2)).float() * SCALE
    best = logits.topk(top, sorted=False).indices
    drawn = torch.randint(tokens, (*best.shape[:-1], sample), device=keys.device)
    taken = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, best, True)
    weight = torch.full(drawn.shape, math.log(tokens / max(sample, 1)), device=keys.device)
    weight = weight.masked_fill(taken.gather(-1, drawn), -math.inf)
    read = torch.cat([best, drawn], -1)
    log_weights = torch.cat([torch.zeros(best.shape, device=keys.device), weight], -1)
    shares = torch.softmax(logits.gather(-1, read) + log_weights, -1).to(values.dtype)
    heads = torch.arange(batch * kv_heads, device=keys.device).view(batch, kv_heads, 1, 1)
    rows = values.reshape(-1, dim).index_select(0, (heads * tokens + read).flatten())
    out = shares[..., None, :] @ rows.view(*read.shape, dim)
    flat = batch, queries.shape[1], -1
    return out.view(flat), read.view(flat), log_weights.view(flat)


def ready(data: Data, step: int) -> Ready:
    """Prepares attention to one token in `step` per query head: half are top tokens, half drawn."""
    keys, values = data.heads_first
    count = data.shape.tokens // step
    top = count // 2

    def error(out: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
        output, tokens, log_weights = out
        return worst_error(output, data.exact_of_heads(tokens, log_weights))

    return Ready(lambda: vattention(data.queries, keys, values, top, count - top), error)


def bytes_read(shape: Shape, step: int) -> int:
    """Returns the bytes of all keys once, and of the values of each query head's tokens."""
    return (shape.lists * shape.tokens + shape.query_heads * (shape.tokens // step)) * DIM * 2
