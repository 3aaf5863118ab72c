"""Entries of PyTorch's fused attention over all rows."""

import warnings
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .data import Data, worst_error
from .entry import LeftOut, Ready, Refused
from .shape import DIM, GROUP, KV_HEADS

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def sdpa(data: Data, backend: str, packed: bool) -> Ready:
    """Prepares a backend of PyTorch with grouped heads, or with `packed` ones.

    Packed queries of a group are tokens of one head. For one query token this is the same
    attention, and may be faster in backends without support for groups.
    """
    if data.device == "cpu" and backend != "math":
        raise LeftOut("needs a GPU")
    keys, values = data.heads_first
    shape = (
        (data.shape.batch, KV_HEADS, GROUP, DIM)
        if packed
        else (data.shape.batch, KV_HEADS * GROUP, 1, DIM)
    )
    queries = data.queries.view(shape)

    def run() -> torch.Tensor:
        with sdpa_kernel(BACKENDS[backend]):
            return scaled_dot_product_attention(queries, keys, values, enable_gqa=not packed)

    try_once(run)
    expected = data.exact
    return Ready(run, lambda out: worst_error(out.reshape(expected.shape), expected))


def try_once(run: Callable[[], object]) -> None:
    """Runs a backend once; raises Refused, with the reasons, if it does not support the inputs.

    PyTorch has the reasons in warnings, not in its error.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run()
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            messages = [str(warning.message) for warning in caught]
            reasons = [message.partition("(Triggered")[0].strip() for message in messages]
            raise Refused("; ".join([first_line(error), *dict.fromkeys(reasons)])) from error


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
