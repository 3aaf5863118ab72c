"""Token lists that equal those of `gather`."""

import torch

from .shape import Shape

WORD = 0xFFFF_FFFF


def make_lists(shape: Shape, step: int, device: str) -> torch.Tensor:
    """Returns one pseudo-random token of every `step` tokens for each KV head, ascending.

    The result has the shape `[lists, tokens // step]` in i64. crates/cuda/examples/gather/data.rs
    makes the same lists; the sum of all tokens is compared.
    """
    lists = torch.arange(shape.lists, dtype=torch.int64)[:, None] * 0x9E37_79B9
    places = torch.arange(shape.tokens // step, dtype=torch.int64)
    mixed = _mix((lists & WORD) ^ (places * 0x85EB_CA6B & WORD))
    return (places * step + mixed % step).to(device)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Mixes the bits of 32-bit words."""
    x = x ^ x >> 16
    x = x * 0x7FEB_352D & WORD
    return x ^ x >> 15
