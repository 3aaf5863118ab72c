"""The cache."""

import copy
from collections.abc import Callable, Iterable
from os import PathLike, fspath
from typing import Any, cast

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from vattention._types import StepReport, Summary
from vattention._vattention import Pipeline
from vattention.transformers._ended import TURN, watch
from vattention.transformers._layer import Layer, Turn
from vattention.transformers._pipeline import PipelineLayer
from vattention.transformers._summary import add_summaries


class VAttentionCache(Cache):  # type: ignore[misc, unused-ignore]
    """A cache for `generate(cache=cache)` whose layers attend by a pipeline.

    Layers of full attention attend by the pipeline; sliding and other layers use the caches that
    `transformers` has for them. In a model whose layers all slide, they attend by the pipeline as
    long as the window holds every token.

    `model` is the model, or its config. With the model, a hook passes the token ids of each call to
    the cache, so that reports leave out the steps of rows that have ended: `generate` feeds
    these with padding until the last row of the batch ends. `end_tokens` are the tokens that end or
    pad a row, by default those of `model.generation_config`; give them if `generate` is given
    others. With the config alone, reports have these steps, too.

    `pipeline` is a `Pipeline`, a TOML file's path, or the name of a built-in pipeline. With
    `check=True` every step is compared with dense attention, which takes more time and memory,
    and reports have errors and violations. With `report=True` the cache stores a report of each
    layer, step and sequence, about 1 kB each; otherwise their sums alone. `options` go to `Attention`: `threads`, `fall_back`,
    `omit_error_bars`, `backend`, `storage` (by default the model's own precision).

    The first prompt is read densely. It consists of the first call and the following calls with
    several tokens each; it ends at the first call with one token, and at `crop`. So
    `generate(prefill_chunk_size=...)` reads a prompt as without chunks. `prompt_tokens`, the
    prompt's length with its padding, sets the end explicitly; this is needed if the last chunk has
    one token. A first call is never divided.

    Memory: keys and values once, in the model's precision, and the indexes of the pipeline's
    selectors.

    `copy.deepcopy` copies a cache, which continues as the original would; `fork()` gives the copy
    samples of its own. `pickle` and `torch.save` save a cache that has read nothing but its prompt,
    and raise TypeError after later steps.

    Raises ValueError for a model whose attention is not a softmax of products, and for a model
    without a layer that a pipeline can run. Raises RuntimeError if the cache is used by another
    model than before, with another attention function, by a model that calls none, by two threads
    at the same time, or after a step that was interrupted.
    """

    def __init__(
        self,
        model: Any,
        pipeline: Pipeline | str | PathLike[str],
        *,
        check: bool = False,
        report: bool = False,
        prompt_tokens: int | None = None,
        end_tokens: int | Iterable[int] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(pipeline, Pipeline):
            pipeline = Pipeline.load(fspath(pipeline))
        if prompt_tokens is not None and prompt_tokens < 1:
            raise ValueError(f"prompt_tokens: expected 1 or more, got {prompt_tokens}")
        is_model = isinstance(model, torch.nn.Module)
        if end_tokens is not None and not is_model:
            raise ValueError(
                "end_tokens: expected the model in place of its config, which shows no tokens"
            )
        own_config: Any = model.config if is_model else model
        config: Any = own_config.get_text_config(decoder=True)
        refuse_config(config)

        def start(number: int, window: int | None, turn: Turn) -> PipelineLayer:
            checked = {"check": check, **options}
            return PipelineLayer(number, window, turn, pipeline, checked, prompt_tokens, report)

        layers, turn = layers_of(config, start)
        if end_tokens is not None:
            turn.end_tokens = {end_tokens} if isinstance(end_tokens, int) else set(end_tokens)
        self._ours = cast(list[PipelineLayer], turn.layers)
        setattr(self, TURN, turn)
        super().__init__(layers=layers)
        if is_model:
            watch(model)

    def summary(self) -> Summary | None:
        """Sums up the reads and promises of all steps of all layers; None before the first step.

        `visible` is the largest of all steps.
        """
        total = None
        for layer in self._ours:
            total = add_summaries(total, layer.summary)
        return total

    def report(self) -> list[StepReport]:
        """Lists the reads and promises of each step of each layer of each sequence.

        Raises RuntimeError if the cache was made without `report=True`.

        Entries are in the order of the layers; `pandas.DataFrame` takes them.

        A call with several tokens (assisted generation, a second prompt) is one entry. The first
        prompt, which is read densely, has no entry. A step of a row that has ended has none either,
        if the cache was made with the model. `sequence` is a place in the batch; with beams, an
        entry belongs to the sequence that had the place at that step.
        """
        if not all(layer.report for layer in self._ours):
            raise RuntimeError(
                "the cache stores no reports of steps: expected VAttentionCache(..., report=True); "
                "summary() has their sums"
            )
        return [entry for layer in self._ours for entry in layer.entries]

    def fork(self) -> "VAttentionCache":
        """Returns an independent cache of the same tokens, with samples of its own.

        Its report begins with this cache's report. Cost: forks share the memory of tokens that the
        pipeline has, and of a prompt until the pipeline's first step; caches of sliding layers are
        copied.

        Exceptions of a selector written in Python reach the caller.
        """
        forked = copy.deepcopy(self)
        for layer, original in zip(forked._ours, self._ours, strict=True):
            layer.renumber(original.counter)
        return forked

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the sequences of these places, or those for which a mask of booleans is true.

        Raises ValueError for a mask of another length or type, IndexError for an index out of
        range.
        """
        super().batch_select_indices(self._checked(indices, "batch_select_indices"))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continues with the sequences of these places, as beam search does.

        Raises the same errors as `batch_select_indices`.
        """
        checked = cast(torch.LongTensor, self._checked(beam_idx, "reorder_cache"))
        super().reorder_cache(checked)

    def _checked(self, indices: torch.Tensor, name: str) -> torch.Tensor:
        """Checks indices before the first layer changes, and returns them as integers."""
        return torch.tensor(self._ours[0].places_of(indices, name), dtype=torch.int64)


def layers_of(
    config: Any, start: Callable[[int, int | None, Turn], Layer]
) -> tuple[list[Any], Turn]:
    """Makes the layers of a cache, with those of `start` for full attention, and their turn."""
    layers: list[Any] = list(DynamicCache(config=config).layers)
    turn = Turn(config)
    kinds = {type(layer) for layer in layers}
    kind = DynamicLayer if DynamicLayer in kinds else DynamicSlidingWindowLayer
    if kind not in kinds:
        raise ValueError(
            f"{type(config).__name__}: no layer has the attention that a pipeline is for: "
            "expected full attention"
        )
    for number, layer in enumerate(layers):
        if type(layer) is kind:
            layers[number] = start(number, getattr(layer, "sliding_window", None), turn)
    return layers, turn


def refuse_config(config: Any) -> None:
    """Refuses what can be told from a model's configuration."""
    name = type(config).__name__
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise ValueError(
            f"{name} caps its logits (attn_logit_softcapping): expected attention that is a "
            "softmax of products"
        )
    if getattr(config, "kv_lora_rank", None) is not None:
        raise ValueError(
            f"{name} caches latent vectors (MLA, kv_lora_rank): expected a cache of keys and values"
        )
