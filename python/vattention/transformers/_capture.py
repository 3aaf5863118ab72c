"""Capture of the queries, keys and values of a model's attention, as a trace."""

from inspect import signature
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from vattention._types import TraceLayer
from vattention.transformers._cache import layers_of, refuse_config
from vattention.transformers._function import NAME, Call, refuse_attention, torch_attention
from vattention.transformers._layer import Layer, Turn
from vattention.transformers._prompt import OBSERVED


class CapturedLayer(Layer):  # type: ignore[no-untyped-call, unused-ignore]
    """Layer of a cache that stores the arguments of attention."""

    def __init__(
        self, number: int, window: int | None, turn: Turn, queries: int, prompt: int
    ) -> None:
        super().__init__(number, window, turn)
        self.queries, self.prompt = queries, prompt
        self.captured: TraceLayer | None = None

    def compute(self, call: Call) -> torch.Tensor:
        refuse_attention(self.number, call)
        first = call.query.shape[2] - self.queries
        usual = call.query.shape[3] ** -0.5
        scaled = call.query[0].float() * (call.options.get("scaling", usual) / usual)
        self.captured = {
            "queries": scaled[:, first:].numpy(),
            "prompt": scaled[:, first - self.prompt : first].numpy(),
            "keys": call.key[0].float().numpy(),
            "values": call.value[0].float().numpy(),
            "visible": np.arange(first + 1, first + self.queries + 1),
            "prompt_tokens": first,
        }
        if call.soft_cap is not None:
            self.captured["soft_cap"] = call.soft_cap
        if call.sink_logits is not None:
            self.captured["sink_logits"] = call.sink_logits.detach().float().numpy()
        return torch_attention(call)


@torch.no_grad()
def capture(
    model: PreTrainedModel, input_ids: torch.Tensor, *, queries: int = 32, prompt: int = OBSERVED
) -> dict[int, TraceLayer]:
    """Records queries, keys and values of a model's layers on one text, for `write_trace`.

    `input_ids` are the tokens of the text, `[1, tokens]`. The queries of the last `queries` tokens
    count as decoded; each sees the tokens up to its own. The queries of the `prompt` tokens before
    them are the end of the prompt, which selectors are shown.

    Returns the layers that would attend by the pipeline in a `VAttentionCache`, by number. If the
    model scales logits by another factor than `1 / sqrt(head_dim)`, the queries are multiplied so
    that this scale is right.

    Cost: one dense pass of the model. Memory: keys and values of all tokens and layers in f32.

    Raises ValueError for another shape, for too few tokens, and for a model that `VAttentionCache`
    refuses.
    """
    if input_ids.ndim != 2 or len(input_ids) != 1:
        raise ValueError(f"input_ids: expected shape [1, tokens], got {list(input_ids.shape)}")
    if queries < 1 or prompt < 1 or input_ids.shape[1] < queries + prompt:
        raise ValueError(
            f"input_ids: expected at least {queries} queries and {prompt} tokens of a prompt, "
            f"1 or more each, got {input_ids.shape[1]} tokens"
        )
    config = model.config.get_text_config(decoder=True)
    refuse_config(config)
    layers, turn = layers_of(
        config, lambda number, window, turn: CapturedLayer(number, window, turn, queries, prompt)
    )
    before: Any = config._attn_implementation
    # Older versions of transformers have the second name.
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    model.set_attn_implementation(NAME)
    try:
        model(input_ids=input_ids, **{name: Cache(layers=layers)}, logits_to_keep=1)
    finally:
        model.set_attn_implementation(before)
    ours = cast(list[CapturedLayer], turn.layers)
    return {layer.number: layer.captured for layer in ours if layer.captured is not None}
