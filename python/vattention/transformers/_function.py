"""The attention function, which finds the cache's layer by its keys."""

from typing import Any, NamedTuple, Protocol, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "vattention"
"""What the attention function is registered as: `attn_implementation`."""

HANDLE = "_vattention_layer"
"""The attribute of the keys by which the attention function finds the cache's layer."""

_SDPA = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call, unused-ignore]
_SDPA_MASK = AttentionMaskInterface()["sdpa"]  # type: ignore[no-untyped-call, unused-ignore]

_UNSUPPORTED = {
    "softcap": "caps its logits",
    "s_aux": "attends to sinks that are parameters",
    "position_bias": "adds a bias to its logits",
}
"""Arguments of attention functions that a softmax of products does not have."""


class Call(NamedTuple):
    """What an attention function is given."""

    module: torch.nn.Module
    query: torch.Tensor
    """[batch, query_heads, queries, head_dim]"""
    key: torch.Tensor
    """[batch, kv_heads, new, head_dim]"""
    value: torch.Tensor
    """[batch, kv_heads, new, value_dim]"""
    mask: torch.Tensor | None
    """[batch, 1, queries, tokens]: what each query sees."""
    options: dict[str, Any]


class Attends(Protocol):
    """What attends in the place of torch: [batch, queries, heads, dim]."""

    def attend(self, call: Call) -> torch.Tensor: ...


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: by the cache's layer if the keys come from one, else torch's own."""
    call = Call(module, query, key, value, attention_mask, options)
    layer: Attends | None = getattr(key, HANDLE, None)
    return torch_attention(call) if layer is None else layer.attend(call), None


def torch_attention(call: Call) -> torch.Tensor:
    """What `transformers` does by "sdpa": [batch, queries, heads, dim]."""
    output, _ = _SDPA(call.module, call.query, call.key, call.value, call.mask, **call.options)
    return cast(torch.Tensor, output)


def refuse_attention(number: int, call: Call) -> None:
    """Refuses attention that is not a causal softmax of products of tensors that the CPU has."""
    for option, what in _UNSUPPORTED.items():
        if call.options.get(option) is not None:
            raise ValueError(
                f"layer {number} {what} ({option}): expected attention that is a softmax of products"
            )
    if call.options.get("dropout"):
        raise ValueError(f"layer {number} drops attention out: expected model.eval()")
    causal = call.options.get("is_causal")
    if not (getattr(call.module, "is_causal", True) if causal is None else causal):
        raise ValueError(f"layer {number} is not causal: expected a decoder-only model")
    if call.query.device.type != "cpu":
        raise ValueError(
            f"the model is on {call.query.device}: expected it on the CPU, by model.to('cpu')"
        )
    if call.query.requires_grad and torch.is_grad_enabled():
        raise ValueError("attention by a pipeline has no gradient: expected torch.no_grad()")


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, _SDPA_MASK)
