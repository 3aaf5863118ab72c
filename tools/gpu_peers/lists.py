"""The lists of tokens that `gather` reads, made again."""

import torch

from .shape import Shape

WORD = 0xFFFF_FFFF


def one_in(shape: Shape, step: int, device: str) -> torch.Tensor:
    """One of every `step` tokens of each KV head, ascending, in places that look random: [lists, tokens // step] in i64.

    crates/cuda/examples/gather/data.rs makes the same; the sum of all tells whether it has.
    """
    lists = torch.arange(shape.lists, dtype=torch.int64)[:, None] * 0x9E37_79B9
    places = torch.arange(shape.tokens // step, dtype=torch.int64)
    mixed = _mixed((lists & WORD) ^ (places * 0x85EB_CA6B & WORD))
    return (places * step + mixed % step).to(device)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """Words of 32 bits whose every bit depends on many of another's."""
    x = x ^ x >> 16
    x = x * 0x7FEB_352D & WORD
    return x ^ x >> 15
