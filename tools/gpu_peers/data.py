"""Queries, keys and values that all entries share, and exact attention over them in f64."""

import functools
import math

import torch

from .shape import DIM, GROUP, KV_HEADS, Shape

SCALE = 1 / math.sqrt(DIM)
SPREAD = 1.5
"""Standard deviation of the logits."""


class Data:
    """Random queries, keys and values of one shape, in bf16."""

    def __init__(self, shape: Shape, device: str) -> None:
        self.shape, self.device = shape, device
        generator = torch.Generator(device).manual_seed(1)
        options = {"dtype": torch.bfloat16, "device": device, "generator": generator}
        self.queries = torch.randn(shape.batch, KV_HEADS * GROUP, DIM, **options) * SPREAD
        rows = shape.batch, shape.tokens, KV_HEADS, DIM
        self.keys, self.values = torch.randn(*rows, **options), torch.randn(*rows, **options)
        """Keys and values in FlashInfer's layout, `[batch, tokens, kv_heads, dim]`."""

    @functools.cached_property
    def heads_first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of keys and values in PyTorch's layout, `[batch, kv_heads, tokens, dim]`."""
        return self.keys.transpose(1, 2).contiguous(), self.values.transpose(1, 2).contiguous()

    @functools.cached_property
    def exact(self) -> torch.Tensor:
        """Attention in f64 over all tokens, `[batch, query_heads, dim]`."""
        return self.exact_of_lists([slice(None)] * self.shape.lists)

    def exact_of_lists(self, chosen: torch.Tensor | list[slice]) -> torch.Tensor:
        """Computes attention in f64 over token lists, `[lists, count]`."""
        outputs = []
        for i in range(self.shape.lists):
            sequence, head = divmod(i, KV_HEADS)
            rows = self.keys[sequence, chosen[i], head], self.values[sequence, chosen[i], head]
            queries = self.queries[sequence, head * GROUP : (head + 1) * GROUP]
            outputs.append(weighted(queries, *rows))
        return torch.cat(outputs).view(self.shape.batch, -1, DIM)

    def exact_of_heads(self, tokens: torch.Tensor, log_weights: torch.Tensor) -> torch.Tensor:
        """Computes attention in f64 over a weighted token list of each query head.

        Both arguments have the shape `[batch, query_heads, count]`.
        """
        outputs = []
        for i in range(self.shape.query_heads):
            sequence, query_head = divmod(i, KV_HEADS * GROUP)
            listed, head = tokens[sequence, query_head], query_head // GROUP
            rows = self.keys[sequence, listed, head], self.values[sequence, listed, head]
            queries = self.queries[sequence, query_head : query_head + 1]
            outputs.append(weighted(queries, *rows, log_weights[sequence, query_head]))
        return torch.cat(outputs).view(self.shape.batch, -1, DIM)


def weighted(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    log_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes attention in f64 of queries `[heads, dim]` over rows `[count, dim]`.

    `log_weights` are the logarithms of the rows' weights, by default 0.
    """
    logits = queries.double() @ keys.double().T * SCALE
    if log_weights is not None:
        logits += log_weights.double()
    return torch.softmax(logits, -1) @ values.double()


def worst_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the largest relative error of a head's output; NaN if an output has one."""
    distances = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return distances.max().item()
