"""Cache whose layers attend by a pipeline."""

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
    """Cache for `generate(cache=cache)` whose layers attend by a pipeline.

    Layers of full attention attend by the pipeline; sliding and other layers use the caches that
    `transformers` has for them. In a model whose layers all slide, they attend by the pipeline,
    and a sequence longer than the window is an error.

    `model` is the model or its config. With the model, a hook passes the token ids of each call to
    the cache, so that reports omit the steps of rows that have ended, which `generate` feeds with
    padding until the last row of the batch ends. With the config alone, reports include them.
    `end_tokens` are the tokens that end or pad a row, by default those of
    `model.generation_config`; pass the same tokens here if you pass others to `generate`.

    `pipeline` is a `Pipeline`, the path of a TOML file, or the name of a built-in pipeline.

    With `check=True`, every step is compared with dense attention, which takes more time and
    memory, and reports have errors and violations. With `report=True`, the cache stores a report of
    each layer, step and sequence, about 1 kB each; otherwise it stores their summary only.
    `options` are passed to `Attention`: `threads`, `fall_back`, `omit_error_bars`, `backend`, and
    `storage` (by default the precision of the model).

    The first prompt is read densely. It consists of the first call and the following calls with
    several tokens each; it ends at the first call with one token, and at `crop`. A prompt that
    `generate(prefill_chunk_size=...)` passes in chunks is therefore read like a whole one.
    `prompt_tokens`, the length of the prompt with its padding, sets the end explicitly; set it if
    the last chunk has one token. The first call always belongs to the prompt as a whole.

    Memory: keys and values once, in the precision of the model, and the indexes of the selectors.

    `copy.deepcopy` copies a cache, which continues as the original would; `fork()` gives the copy
    independent samples. `pickle` and `torch.save` save a cache that has read nothing but its
    prompt, and raise TypeError after later steps.

    Soft caps of logits (Gemma 2) and attention sinks that are parameters (gpt-oss) are supported.

    Raises ValueError for a model that adds a bias to its logits or caches latent vectors, and for a
    model without a layer of full or sliding attention. Its use raises RuntimeError if another model
    filled the cache, if the model has another attention function or calls none, if two threads use
    the cache at the same time, and after an interrupted step until `reset()`.
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
                "end_tokens: expected the model in place of its config, which passes no tokens"
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
        """Returns a summary of all steps of all layers; None before the first step.

        Counts are sums, and `visible` is the largest of all steps.
        """
        total = None
        for layer in self._ours:
            total = add_summaries(total, layer.summary)
        return total

    def report(self) -> list[StepReport]:
        """Returns the reports of each layer, step and sequence, in the order of the layers.

        `pandas.DataFrame` makes a table of them. A call with several tokens (assisted generation, a
        second prompt) has one entry. The first prompt, which is read densely, has no entry, and
        neither has a step of an ended row if the cache was made with the model. `sequence` is an
        index in the batch; in beam search, the entry belongs to the beam of this index at that
        step.

        Raises RuntimeError if the cache was made without `report=True`.
        """
        if not all(layer.report for layer in self._ours):
            raise RuntimeError(
                "the cache stores no reports of steps: expected VAttentionCache(..., report=True); "
                "summary() has their sums"
            )
        return [entry for layer in self._ours for entry in layer.entries]

    def fork(self) -> "VAttentionCache":
        """Returns an independent cache of the same tokens, with independent samples.

        The report of the fork begins with the entries of this cache.

        Cost: forks share the memory of tokens and prompts in layers that attend by the pipeline;
        caches of sliding layers are copied.

        Raises the exceptions of selectors that are written in Python.
        """
        forked = copy.deepcopy(self)
        for layer, original in zip(forked._ours, self._ours, strict=True):
            layer.renumber(original.counter)
        return forked

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the sequences with these indices in the batch, or those selected by a bool mask.

        Raises ValueError for a mask of another length or type, IndexError for an index out of
        range.
        """
        super().batch_select_indices(self._checked(indices, "batch_select_indices"))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continues with the sequences at these indices, as beam search does.

        Raises the same errors as `batch_select_indices`.
        """
        checked = cast(torch.LongTensor, self._checked(beam_idx, "reorder_cache"))
        super().reorder_cache(checked)

    def _checked(self, indices: torch.Tensor, name: str) -> torch.Tensor:
        """Returns indices as integers, and raises before any layer changes if they are invalid."""
        return torch.tensor(self._ours[0].places_of(indices, name), dtype=torch.int64)


def layers_of(
    config: Any, start: Callable[[int, int | None, Turn], Layer]
) -> tuple[list[Any], Turn]:
    """Makes the layers of a cache, with layers by `start` for full attention, and their turn."""
    layers: list[Any] = list(DynamicCache(config=config).layers)
    turn = Turn(config)
    kinds = {type(layer) for layer in layers}
    kind = DynamicLayer if DynamicLayer in kinds else DynamicSlidingWindowLayer
    if kind not in kinds:
        raise ValueError(
            f"{type(config).__name__}: expected at least one layer of full or sliding attention, "
            "found none"
        )
    for number, layer in enumerate(layers):
        if type(layer) is kind:
            layers[number] = start(number, getattr(layer, "sliding_window", None), turn)
    return layers, turn


def refuse_config(config: Any) -> None:
    """Raises ValueError if the config shows that the model's attention is not supported."""
    name = type(config).__name__
    if getattr(config, "kv_lora_rank", None) is not None:
        raise ValueError(
            f"{name} caches latent vectors (MLA, kv_lora_rank): expected a cache of keys and values"
        )
