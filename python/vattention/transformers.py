"""`model.generate()` of `transformers` by a pipeline: an attention function, and a cache that it finds.

    import vattention.transformers
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="vattention")
    cache = vattention.transformers.VAttentionCache(model.config, "configs/priority.toml")
    model.generate(**inputs, past_key_values=cache)
    cache.report()

Importing this module registers the attention function "vattention". A prompt is read densely, by torch; each token after it attends by the
pipeline. Without this cache, "vattention" is torch's own attention. docs/python.md says which models and kinds of generation work.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from os import PathLike, fspath
from typing import Any, Literal, cast

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from vattention._types import StepReport, TraceLayer
from vattention._vattention import Attention, Output, Pipeline, append_batch, attend_batch

__all__ = ["NAME", "VAttentionCache", "capture"]

NAME = "vattention"
"""What the attention function is registered as: `attn_implementation`."""

OBSERVED = 64
"""Queries of the prompt's last tokens that selectors are shown, as many as the project's own models show."""

_HANDLE = "_vattention_layer"
"""The attribute of the keys by which the attention function finds the cache's layer."""

_STORAGE: dict[torch.dtype, Literal["f32", "f16", "bf16"]] = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}

_SDPA = AttentionInterface()["sdpa"]  # type: ignore[no-untyped-call, unused-ignore]
_SDPA_MASK = AttentionMaskInterface()["sdpa"]  # type: ignore[no-untyped-call, unused-ignore]

_UNSUPPORTED = {
    "softcap": "caps its logits",
    "s_aux": "attends to sinks that are parameters",
    "position_bias": "adds a bias to its logits",
}
"""Arguments of attention functions that a softmax of products does not have."""


class VAttentionCache(Cache):  # type: ignore[misc, unused-ignore]
    """A cache for `generate(past_key_values=cache)` whose layers attend by a pipeline.

    Layers of full attention are the pipeline's; sliding and other layers stay with the caches that `transformers` has for them. In a model
    whose layers all slide, they are the pipeline's as long as the window holds every token.

    `config` is the model's; `pipeline` a `Pipeline` or a TOML file's path. With `check=True` every step is compared with dense attention,
    which takes its time and memory, and `report()` has errors and violations. `options` go to `Attention`: `threads`, `fall_back`,
    `omit_error_bars`, `backend`, `storage` (by default the model's own precision).

    Memory: keys and values once, in the model's precision, and what the pipeline's selectors keep beside.

    Raises ValueError for a model whose attention is not a softmax of products, and for one that has nothing for the pipeline to do;
    RuntimeError when it is used by another model than before, with another attention function, by two threads at once, or after a step that
    ended in the middle.
    """

    def __init__(self, config: Any, pipeline: Pipeline | str | PathLike[str], *, check: bool = False, **options: Any) -> None:
        if not isinstance(pipeline, Pipeline):
            pipeline = Pipeline.load(fspath(pipeline))
        config = config.get_text_config(decoder=True)
        _refuse_config(config)

        def start(number: int, window: int | None, turn: _Turn) -> _PipelineLayer:
            return _PipelineLayer(number, window, turn, pipeline, {"check": check, **options})

        layers, self._ours = _layers(config, start)
        super().__init__(layers=layers)

    def report(self) -> list[StepReport]:
        """What each step of each layer of each sequence read and promised, in the order of the layers; `pandas.DataFrame` takes it.

        A call that brings several tokens (assisted generation, a second prompt) is one entry. The first prompt, which is read densely, is
        none. Entries follow a sequence's place in the batch; those of beams are of whichever sequence had the place.
        """
        return [entry for layer in self._ours for entry in layer.entries]


class _Turn:
    """Whose step it is: the layers of a cache are gone through in order, by one thread at a time."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.layers: list[_Layer] = []
        self.thread: int | None = None
        self.checked_mask: torch.Tensor | None = None

    def begin(self, layer: "_Layer") -> None:
        """Before a layer takes new tokens."""
        implementation = getattr(self.config, "_attn_implementation", NAME)
        if implementation != NAME:
            raise RuntimeError(
                f"the model's attention is `{implementation}`: expected model.set_attn_implementation({NAME!r}) before it uses this cache"
            )
        thread = threading.get_ident()
        if self.thread not in (None, thread):
            raise RuntimeError("this cache is in use by another thread: expected one at a time")
        self.thread = thread
        lengths = [other.get_seq_length() for other in self.layers]
        done, new = lengths[: layer.place], lengths[layer.place :]
        if len(set(new)) > 1 or len(set(done)) > 1 or any(other.pending for other in self.layers):
            raise RuntimeError("a step of this cache ended in the middle: expected reset() before it is used again")

    def end(self, layer: "_Layer") -> None:
        """After a layer has attended."""
        if layer is self.layers[-1]:
            self.thread = None
            self.checked_mask = None


class _Layer(CacheLayerMixin):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """One layer's keys and values, given over to the attention function by way of the keys."""

    is_compileable = False
    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, number: int, window: int | None, turn: _Turn) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.number = number
        self.window = window
        self.turn = turn
        self.place = len(turn.layers)
        self.length = 0
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None
        turn.layers.append(self)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.turn.begin(self)
        self.lazy_initialization(key_states, value_states)
        if self.window is not None and self.length + key_states.shape[2] > self.window:
            raise ValueError(
                f"layer {self.number} slides over {self.window} tokens: expected no more, got {self.length + key_states.shape[2]}"
            )
        self.pending = (key_states, value_states)
        setattr(key_states, _HANDLE, self)
        return self.pending

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """Stores the tokens that `update` brought, and attends: [batch, queries, heads, dim]."""
        if self.pending is None or self.pending[0] is not key or self.pending[1] is not value:
            raise RuntimeError(f"layer {self.number} changes keys or values after its cache: expected a model that does not")
        output = self.answer(module, query, key, value, mask, options)
        self.pending = None
        self.length += key.shape[2]
        self.turn.end(self)
        return output

    def answer(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        raise NotImplementedError

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        new = query_length if isinstance(query_length, int) else len(query_length)  # Older versions give their positions.
        return self.length + new, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # Its name in older versions.

    def reset(self) -> None:
        self.length, self.pending = 0, None
        self.turn.thread = None


class _PipelineLayer(_Layer):  # type: ignore[no-untyped-call, unused-ignore]
    """A layer that attends by a pipeline: one `Attention` for each sequence of the batch."""

    def __init__(self, number: int, window: int | None, turn: _Turn, pipeline: Pipeline, options: dict[str, Any]) -> None:
        super().__init__(number, window, turn)
        self.pipeline = pipeline
        self.options = options
        self.clear()

    def clear(self) -> None:
        self.sequences: list[Attention] = []
        self.steps: list[int] = []
        self.numbers = count()
        self.entries: list[StepReport] = []
        self.module: Callable[[], torch.nn.Module | None] = lambda: None
        self.dtype: torch.dtype | None = None

    def answer(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        _refuse_attention(self.number, module, query, options)
        if self.length == 0:
            return self.prefill(module, query, key, value, mask, options)
        if self.module() is not module or query.dtype != self.dtype:
            raise RuntimeError("this cache was filled by another model, or before its type changed: expected reset()")
        return self.decode(query, key, value, mask)

    def prefill(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """The first prompt: torch attends, and what is not padding is stored."""
        output = _torch_attention(module, query, key, value, mask, options)
        self.begin(module, query, key, value, options)
        for place, attention in enumerate(self.sequences):
            real = _unpadded(mask, place, key.shape[2])
            attention.append(key[place][:, real], value[place][:, real])
            attention.observe(query[place][:, real][:, -OBSERVED:])
        return output

    def begin(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: dict[str, Any],
    ) -> None:
        """Makes an empty sequence for each of the batch."""
        self.module, self.dtype = weakref.ref(module), query.dtype
        self.sequences = [self.start(query, key, value, options) for _ in query]
        self.steps = [0] * len(query)

    def start(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]) -> Attention:
        if query.dtype not in _STORAGE:
            raise ValueError(f"expected a model in float32, float16 or bfloat16, got {query.dtype}")
        return Attention(
            self.pipeline,
            query.shape[1],
            key.shape[1],
            key.shape[3],
            value.shape[3],
            layer=self.number,
            sequence=next(self.numbers),
            scale=options.get("scaling"),
            **{"storage": _STORAGE[query.dtype], **self.options},
        )

    def decode(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Tokens after the first prompt: each attends by the pipeline."""
        new = query.shape[2]
        visible = None
        if new > 1:
            visible = [[len(one) + place + 1 for place in range(new)] for one in self.sequences]
        self.check_mask(mask, new)
        append_batch(self.sequences, key, value)
        outputs = attend_batch(self.sequences, query, visible, threads=self.options.get("threads"))
        self.note(outputs, new)
        stacked = outputs[0].out[None] if len(outputs) == 1 else np.stack([one.out for one in outputs])
        return torch.from_numpy(stacked).to(query.dtype).transpose(1, 2)

    def check_mask(self, mask: torch.Tensor | None, new: int) -> None:
        """Refuses a mask that hides more than the padding of the first prompt and what is yet to come."""
        if mask is None or mask is self.turn.checked_mask:
            return
        seen = (mask if mask.dtype == torch.bool else mask == 0)[:, 0].sum(-1)
        expected = [[len(one) + place + 1 for place in range(new)] for one in self.sequences]
        if seen.tolist() != expected:
            raise ValueError("attention_mask: expected one that shows each token all before it but the padding of the first prompt")
        self.turn.checked_mask = mask

    def note(self, outputs: Sequence[Output], new: int) -> None:
        for place, output in enumerate(outputs):
            entry = {"layer": self.number, "step": self.steps[place], "sequence": place, **output.summary()}
            self.entries.append(cast(StepReport, entry))
            self.steps[place] += new

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest `-tokens_to_remove` tokens of every sequence; older versions say how many to keep."""
        removed = -tokens_to_remove if tokens_to_remove <= 0 else max(self.length - tokens_to_remove, 0)
        if removed == 0:
            return
        for attention in self.sequences:
            attention.truncate(len(attention) - removed)
        self.length -= removed

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.take(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.take(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.take([place for place in range(len(self.sequences)) for _ in range(repeats)])

    def take(self, places: Iterable[int]) -> None:
        """Goes on with the sequences of these places: one that is taken again is forked, with samples of its own."""
        taken: list[Attention] = []
        steps: list[int] = []
        for place in places:
            attention = self.sequences[place]
            if any(attention is other for other in taken):
                attention = attention.fork(next(self.numbers))
            taken.append(attention)
            steps.append(self.steps[place])
        self.sequences, self.steps = taken, steps

    def reset(self) -> None:
        super().reset()
        self.clear()


def _layers(config: Any, start: Callable[[int, int | None, _Turn], _Layer]) -> tuple[list[Any], list[Any]]:
    """The layers of a cache for a model: ours in the place of those with full attention."""
    layers: list[Any] = list(DynamicCache(config=config).layers)
    turn = _Turn(config)
    kinds = {type(layer) for layer in layers}
    kind = DynamicLayer if DynamicLayer in kinds else DynamicSlidingWindowLayer
    if kind not in kinds:
        raise ValueError(f"{type(config).__name__}: no layer has the attention that a pipeline is for: expected full attention")
    for number, layer in enumerate(layers):
        if type(layer) is kind:
            layers[number] = start(number, getattr(layer, "sliding_window", None), turn)
    return layers, turn.layers


def _refuse_config(config: Any) -> None:
    """Refuses what can be told from a model's configuration."""
    name = type(config).__name__
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise ValueError(f"{name} caps its logits (attn_logit_softcapping): expected attention that is a softmax of products")
    if getattr(config, "kv_lora_rank", None) is not None:
        raise ValueError(f"{name} caches latent vectors (MLA, kv_lora_rank): expected a cache of keys and values")


def _refuse_attention(number: int, module: torch.nn.Module, query: torch.Tensor, options: dict[str, Any]) -> None:
    """Refuses attention that is not a causal softmax of products of tensors that the CPU has."""
    for option, what in _UNSUPPORTED.items():
        if options.get(option) is not None:
            raise ValueError(f"layer {number} {what} ({option}): expected attention that is a softmax of products")
    if options.get("dropout"):
        raise ValueError(f"layer {number} drops attention out: expected model.eval()")
    if not (getattr(module, "is_causal", True) if options.get("is_causal") is None else options["is_causal"]):
        raise ValueError(f"layer {number} is not causal: expected a decoder-only model")
    if query.device.type != "cpu":
        raise ValueError(f"the model is on {query.device}: expected it on the CPU, by model.to('cpu')")
    if torch.is_grad_enabled() and query.requires_grad:
        raise ValueError("attention by a pipeline has no gradient: expected torch.no_grad()")


def _unpadded(mask: torch.Tensor | None, place: int, tokens: int) -> slice | torch.Tensor:
    """The tokens of a prompt that its last one sees: without padding."""
    if mask is None:
        return slice(None)
    last = mask[place, 0, -1]
    seen = last if last.dtype == torch.bool else last == 0
    hidden = tokens - int(seen.sum())
    return slice(hidden, None) if bool(seen[hidden:].all()) else seen


def _torch_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: dict[str, Any],
) -> torch.Tensor:
    """What `transformers` does by "sdpa": [batch, queries, heads, dim]."""
    output, _ = _SDPA(module, query, key, value, mask, **options)
    return cast(torch.Tensor, output)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: by the cache's layer if the keys come from one, else torch's own."""
    layer: _Layer | None = getattr(key, _HANDLE, None)
    attend = _torch_attention if layer is None else layer.attend
    return attend(module, query, key, value, attention_mask, options), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, _SDPA_MASK)


class _CapturedLayer(_Layer):  # type: ignore[no-untyped-call, unused-ignore]
    """A layer that keeps what attention is given."""

    def __init__(self, number: int, window: int | None, turn: _Turn, queries: int, prompt: int) -> None:
        super().__init__(number, window, turn)
        self.queries, self.prompt = queries, prompt
        self.captured: TraceLayer | None = None

    def answer(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        options: dict[str, Any],
    ) -> torch.Tensor:
        _refuse_attention(self.number, module, query, options)
        first = query.shape[2] - self.queries
        usual = query.shape[3] ** -0.5
        scaled = query[0].float() * (options.get("scaling", usual) / usual)
        self.captured = {
            "queries": scaled[:, first:].numpy(),
            "prompt": scaled[:, first - self.prompt : first].numpy(),
            "keys": key[0].float().numpy(),
            "values": value[0].float().numpy(),
            "visible": np.arange(first + 1, first + self.queries + 1),
            "prompt_tokens": first,
        }
        return _torch_attention(module, query, key, value, mask, options)


@torch.no_grad()
def capture(model: PreTrainedModel, input_ids: torch.Tensor, *, queries: int = 32, prompt: int = OBSERVED) -> dict[int, TraceLayer]:
    """Queries, keys and values of a model's layers on one text, for `write_trace`.

    `input_ids` `[1, tokens]`. The last `queries` tokens are the decoded ones, each of which sees the tokens up to itself; the `prompt`
    tokens before them are the end of the prompt, which selectors are shown. Layers are those that `VAttentionCache` would take. Queries
    of a model that does not scale by `1 / sqrt(head_dim)` are multiplied such that this is their scale.

    Cost: one dense pass of the model. Memory: keys and values of all tokens and layers in f32.

    Raises ValueError for another shape or too few tokens, or for a model that `VAttentionCache` refuses.
    """
    if input_ids.ndim != 2 or len(input_ids) != 1:
        raise ValueError(f"input_ids: expected shape [1, tokens], got {list(input_ids.shape)}")
    if queries < 1 or prompt < 1 or input_ids.shape[1] < queries + prompt:
        raise ValueError(
            f"input_ids: expected at least {queries} queries and {prompt} tokens of a prompt, 1 or more each, "
            f"got {input_ids.shape[1]} tokens"
        )
    config = model.config.get_text_config(decoder=True)
    _refuse_config(config)
    layers, ours = _layers(config, lambda number, window, turn: _CapturedLayer(number, window, turn, queries, prompt))
    before: Any = config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        model(input_ids=input_ids, past_key_values=Cache(layers=layers), logits_to_keep=1)
    finally:
        model.set_attn_implementation(before)
    return {layer.number: layer.captured for layer in ours if layer.captured is not None}
