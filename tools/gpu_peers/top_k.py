"""Entries of top-k of given f32 scores, a lower bound on the time of a selection."""

import torch

from .entry import Ready
from .paged import import_flashinfer
from .shape import Shape


def scores(shape: Shape, device: str) -> torch.Tensor:
    """Returns random scores, `[query heads of all sequences, tokens]`."""
    generator = torch.Generator(device).manual_seed(2)
    return torch.randn(shape.query_heads, shape.tokens, device=device, generator=generator)


def make_torch(shape: Shape, count: int, device: str) -> Ready:
    numbers = scores(shape, device)
    return Ready(
        lambda: torch.topk(numbers, count, sorted=False), lambda out: wrong(numbers, count, out)
    )


def make_flashinfer(shape: Shape, count: int, device: str) -> Ready:
    flashinfer = import_flashinfer(device)
    numbers = scores(shape, device)
    return Ready(lambda: flashinfer.top_k(numbers, count), lambda out: wrong(numbers, count, out))


def wrong(numbers: torch.Tensor, count: int, out: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Returns the share of the results whose value or index is wrong."""
    values, places = out
    best = numbers.sort(-1, descending=True).values[:, :count]
    taken = values.sort(-1, descending=True).values
    misplaced = numbers.gather(-1, places.long()) != values
    return ((taken != best) | misplaced).double().mean().item()
