"""Entries of FlashInfer's decode: all tokens in pages of 16, token lists in pages of one row."""

import importlib
from types import ModuleType

import torch

from .data import Data, worst_error
from .entry import LeftOut, Ready
from .shape import DIM, GROUP, KV_HEADS

PAGE = 16
WORKSPACE = 512 << 20
"""Bytes of FlashInfer's workspace, for partial results of long sequences."""


def import_flashinfer(device: str) -> ModuleType:
    if device == "cpu":
        raise LeftOut("needs a GPU")
    try:
        return importlib.import_module("flashinfer")
    except Exception as error:  # Its imports fail with many kinds of exceptions.
        raise LeftOut(f"flashinfer cannot be imported ({type(error).__name__}: {error})") from error


def dense(data: Data, tensor_cores: bool) -> Ready:
    """Prepares attention to all tokens, in pages of 16."""
    flashinfer = import_flashinfer(data.device)
    batch, tokens = data.shape.batch, data.shape.tokens
    if tokens % PAGE:
        raise LeftOut(f"expected a multiple of {PAGE} tokens, found {tokens}")
    pages = torch.arange(batch * tokens // PAGE, device=data.device)
    keys, values = (rows.view(-1, PAGE, KV_HEADS, DIM) for rows in (data.keys, data.values))
    heads = KV_HEADS * GROUP, KV_HEADS
    run = plan(flashinfer, data.queries, (keys, values), pages.view(batch, -1), heads, tensor_cores)
    expected = data.exact
    return Ready(run, lambda out: worst_error(out, expected))


def gathered(data: Data, chosen: torch.Tensor, tensor_cores: bool) -> Ready:
    """Prepares attention to token lists, `[lists, count]`.

    Each KV head is a request with one KV head, and each row is a page.
    """
    flashinfer = import_flashinfer(data.device)
    keys, values = (rows.view(-1, 1, 1, DIM) for rows in (data.keys, data.values))
    queries = data.queries.view(-1, GROUP, DIM)
    pages = places_of_rows(data, chosen)
    run = plan(flashinfer, queries, (keys, values), pages, (GROUP, 1), tensor_cores)
    expected = data.exact_of_lists(chosen)
    return Ready(run, lambda out: worst_error(out.view(expected.shape), expected))


def places_of_rows(data: Data, chosen: torch.Tensor) -> torch.Tensor:
    """Returns the indices of the rows of token lists among all rows.

    Lists are `[lists, count]`, all rows `[batch, tokens, kv_heads]`.
    """
    lists = torch.arange(data.shape.lists, device=chosen.device)[:, None]
    sequences, heads = lists // KV_HEADS, lists % KV_HEADS
    return (sequences * data.shape.tokens + chosen) * KV_HEADS + heads


def plan(flashinfer, queries, rows, pages, heads: tuple[int, int], tensor_cores: bool):
    """Returns a function that attends to full pages, `[requests, count]`.

    The plan is made once, as a server makes it once for all layers.
    """
    requests, count = pages.shape
    device, page = queries.device, rows[0].shape[1]
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=tensor_cores
    )
    integers = {"dtype": torch.int32, "device": device}
    wrapper.plan(
        torch.arange(requests + 1, **integers) * count,
        pages.flatten().to(torch.int32),
        torch.full((requests,), page, **integers),
        *heads,
        DIM,
        page,
        q_data_type=queries.dtype,
        kv_data_type=queries.dtype,
    )
    return lambda: wrapper.run(queries, rows)
