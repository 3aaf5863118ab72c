"""The cache."""

from collections.abc import Callable
from os import PathLike, fspath
from typing import Any

from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from vattention._types import StepReport
from vattention._vattention import Pipeline
from vattention.transformers._layer import Layer, Turn
from vattention.transformers._pipeline import PipelineLayer


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
        refuse_config(config)

        def start(number: int, window: int | None, turn: Turn) -> PipelineLayer:
            return PipelineLayer(number, window, turn, pipeline, {"check": check, **options})

        layers, self._ours = layers_of(config, start)
        super().__init__(layers=layers)

    def report(self) -> list[StepReport]:
        """What each step of each layer of each sequence read and promised, in the order of the layers; `pandas.DataFrame` takes it.

        A call that brings several tokens (assisted generation, a second prompt) is one entry. The first prompt, which is read densely, is
        none. Entries follow a sequence's place in the batch; those of beams are of whichever sequence had the place.
        """
        return [entry for layer in self._ours for entry in layer.entries]


def layers_of(config: Any, start: Callable[[int, int | None, Turn], Layer]) -> tuple[list[Any], list[Any]]:
    """The layers of a cache for a model: ours in the place of those with full attention."""
    layers: list[Any] = list(DynamicCache(config=config).layers)
    turn = Turn(config)
    kinds = {type(layer) for layer in layers}
    kind = DynamicLayer if DynamicLayer in kinds else DynamicSlidingWindowLayer
    if kind not in kinds:
        raise ValueError(f"{type(config).__name__}: no layer has the attention that a pipeline is for: expected full attention")
    for number, layer in enumerate(layers):
        if type(layer) is kind:
            layers[number] = start(number, getattr(layer, "sliding_window", None), turn)
    return layers, turn.layers


def refuse_config(config: Any) -> None:
    """Refuses what can be told from a model's configuration."""
    name = type(config).__name__
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise ValueError(f"{name} caps its logits (attn_logit_softcapping): expected attention that is a softmax of products")
    if getattr(config, "kv_lora_rank", None) is not None:
        raise ValueError(f"{name} caches latent vectors (MLA, kv_lora_rank): expected a cache of keys and values")
