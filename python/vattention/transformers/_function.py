"""Attention function, which finds the layer of the cache by an attribute of the keys."""

from typing import Any, NamedTuple, Protocol, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from vattention._softmax import dense_attention

NAME = "vattention"
"""Registered name of the attention function, for `attn_implementation`."""

HANDLE = "_vattention_layer"
"""Attribute of the keys that refers to the layer of the cache."""

_SDPA = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call, unused-ignore]
_SDPA_MASK = AttentionMaskInterface()["sdpa"]  # type: ignore[no-untyped-call, unused-ignore]

_UNSUPPORTED = {"position_bias": "adds a bias to its logits"}
"""Arguments of attention functions that pipelines do not support."""


class Call(NamedTuple):
    """Arguments of the attention function."""

    module: torch.nn.Module
    query: torch.Tensor
    """Queries, `[batch, query_heads, queries, head_dim]`."""
    key: torch.Tensor
    """Keys, `[batch, kv_heads, new, head_dim]`."""
    value: torch.Tensor
    """Values, `[batch, kv_heads, new, value_dim]`."""
    mask: torch.Tensor | None
    """Mask of the tokens that each query sees, `[batch, 1, queries, tokens]`."""
    options: dict[str, Any]

    @property
    def soft_cap(self) -> float | None:
        """Cap of the logits."""
        return self.options.get("softcap")

    @property
    def sink_logits(self) -> torch.Tensor | None:
        """Logits of the attention sinks that are parameters, `[query_heads]`."""
        return self.options.get("s_aux")


class Attends(Protocol):
    """Object that computes attention in place of torch."""

    def attend(self, call: Call) -> torch.Tensor:
        """Returns the output, `[batch, queries, heads, dim]`."""
        ...


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Computes attention by the layer of a `VAttentionCache`, or by torch with other caches."""
    call = Call(module, query, key, value, attention_mask, options)
    layer: Attends | None = getattr(key, HANDLE, None)
    return torch_attention(call) if layer is None else layer.attend(call), None


def torch_attention(call: Call) -> torch.Tensor:
    """Computes attention as `transformers` does, `[batch, queries, heads, dim]`.

    It is that of "sdpa", which has neither soft caps nor attention sinks, or `dense_attention`.
    """
    if call.soft_cap is not None or call.sink_logits is not None:
        return dense_attention(
            call.query,
            call.key,
            call.value,
            call.mask,
            call.options.get("scaling"),
            call.soft_cap,
            call.sink_logits,
        )
    output, _ = _SDPA(call.module, call.query, call.key, call.value, call.mask, **call.options)
    return cast(torch.Tensor, output)


def refuse_attention(number: int, call: Call) -> None:
    """Raises ValueError unless attention is a causal softmax of dot products on the CPU."""
    for option, fault in _UNSUPPORTED.items():
        if call.options.get(option) is not None:
            raise ValueError(
                f"layer {number} {fault} ({option}): expected attention that is a softmax of dot "
                "products"
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
