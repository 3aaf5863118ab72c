"""The best of ready-made f32 scores: what a selection takes whose scores cost nothing."""

import torch

from .entry import Ready
from .paged import import_flashinfer
from .shape import Shape


def scores(shape: Shape, device: str) -> torch.Tensor:
    """Random scores, [query_heads of all sequences, tokens]."""
    generator = torch.Generator(device).manual_seed(2)
    return torch.randn(shape.query_heads, shape.tokens, device=device, generator=generator)


def of_torch(shape: Shape, count: int, device: str) -> Ready:
    numbers = scores(shape, device)
    return Ready(
        lambda: torch.topk(numbers, count, sorted=False), lambda out: wrong(numbers, count, out)
    )


def of_flashinfer(shape: Shape, count: int, device: str) -> Ready:
    flashinfer = import_flashinfer(device)
    numbers = scores(shape, device)
    return Ready(lambda: flashinfer.top_k(numbers, count), lambda out: wrong(numbers, count, out))


def wrong(numbers: torch.Tensor, count: int, out: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The share of the taken that should not have been taken, or are not at the places told."""
    values, places = out
    best = numbers.sort(-1, descending=True).values[:, :count]
    taken = values.sort(-1, descending=True).values
    misplaced = numbers.gather(-1, places.long()) != values
    return ((taken != best) | misplaced).double().mean().item()
