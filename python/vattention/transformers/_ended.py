"""Rows of a batch that have ended, and are fed padding until the last row ends.

A cache receives keys, not tokens. A hook on the model passes the token ids of each call to it.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import torch

TURN = "_vattention_turn"
"""Attribute of a cache that the hook writes to."""

_watched: WeakSet[torch.nn.Module] = WeakSet()


def watch(model: torch.nn.Module) -> None:
    """Adds a hook that passes the ended rows to the cache of each call of `model`.

    Further calls for the same model add no second hook.
    """
    if model not in _watched:
        model.register_forward_pre_hook(_before_forward, with_kwargs=True)
        _watched.add(model)


def find_ended(input_ids: torch.Tensor, end_tokens: Iterable[int]) -> list[bool]:
    """Returns a flag for each row that is fed an end token or padding, or no flags if none can be.

    `input_ids` `[batch, new]`. Only steps of one token have such rows, and only batches of several
    rows: generation of a single row stops when the row ends.
    """
    if input_ids.ndim != 2 or input_ids.shape[0] == 1 or input_ids.shape[1] != 1:
        return []
    ends = set(end_tokens)
    return [token in ends for token in input_ids[:, 0].tolist()]


def list_end_tokens(model: Any) -> set[int]:
    """Returns the tokens that end or pad a row, according to the model's `generation_config`."""
    config = getattr(model, "generation_config", None)
    ends, padding = getattr(config, "eos_token_id", None), getattr(config, "pad_token_id", None)
    if ends is None:
        return set()  # All rows end together, so no row is padded.
    ends = {ends} if isinstance(ends, int) else set(ends)
    return ends if padding is None else ends | {padding}


def _before_forward(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    caches = (kwargs.get("cache"), kwargs.get("past_key_values"))  # The second is the older name.
    turn = next((getattr(cache, TURN) for cache in caches if hasattr(cache, TURN)), None)
    if turn is None:
        return
    ids = kwargs.get("input_ids", args[0] if args else None)
    ends = list_end_tokens(model) if turn.end_tokens is None else turn.end_tokens
    turn.ended = find_ended(ids, ends) if isinstance(ids, torch.Tensor) else []
