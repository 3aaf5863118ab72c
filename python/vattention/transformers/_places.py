"""Places in a batch, given by indices or a mask."""

from typing import Any

import torch

_INTEGERS = (torch.int32, torch.int64)  # Torch treats uint8 as a mask.


def places_of(indices: Any, batch: int, name: str) -> list[int]:
    """Returns the places that indices or a mask select, in order.

    Negative indices count from the end, as in torch. `name` is the function's name in messages.

    Raises ValueError for another shape, type or length, and for no place; IndexError for an index
    that is out of range.
    """
    chosen = torch.as_tensor(indices)
    if chosen.ndim != 1:
        raise ValueError(
            f"{name}: expected indices or a mask of one dimension, got shape {list(chosen.shape)}"
        )
    if chosen.dtype == torch.bool:
        if len(chosen) != batch:
            raise ValueError(f"{name}: expected a mask of {batch} sequences, got {len(chosen)}")
        chosen = chosen.nonzero().flatten()
    if len(chosen) == 0:
        raise ValueError(f"{name}: expected at least one sequence, got none")
    if chosen.dtype not in _INTEGERS:
        raise ValueError(
            f"{name}: expected indices of type int64 or a mask of type bool, got {chosen.dtype}"
        )
    places: list[int] = chosen.tolist()
    for place in places:
        if not -batch <= place < batch:
            raise IndexError(f"{name}: expected indices from 0 to {batch - 1}, got {place}")
    return [place % batch for place in places]
