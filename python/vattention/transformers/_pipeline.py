"""A layer of the cache that attends by a pipeline."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Literal, cast

import numpy as np
import torch

from vattention._types import StepReport
from vattention._vattention import Attention, Output, Pipeline, append_batch, attend_batch
from vattention.transformers._function import Call, refuse_attention, torch_attention
from vattention.transformers._layer import Layer, Turn

OBSERVED = 64
"""Queries of the prompt's last tokens that selectors are shown, as many as the project's own models show."""

_STORAGE: dict[torch.dtype, Literal["f32", "f16", "bf16"]] = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}


class PipelineLayer(Layer):  # type: ignore[no-untyped-call, unused-ignore]
    """A layer that attends by a pipeline: one `Attention` for each sequence of the batch."""

    def __init__(self, number: int, window: int | None, turn: Turn, pipeline: Pipeline, options: dict[str, Any]) -> None:
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

    def answer(self, call: Call) -> torch.Tensor:
        refuse_attention(self.number, call)
        if self.length == 0:
            return self.prefill(call)
        if self.module() is not call.module or call.query.dtype != self.dtype:
            raise RuntimeError("this cache was filled by another model, or before its type changed: expected reset()")
        return self.decode(call)

    def prefill(self, call: Call) -> torch.Tensor:
        """The first prompt: torch attends, and what is not padding is stored."""
        output = torch_attention(call)
        self.begin(call)
        for place, attention in enumerate(self.sequences):
            real = _unpadded(call, place)
            attention.append(call.key[place][:, real], call.value[place][:, real])
            attention.observe(call.query[place][:, real][:, -OBSERVED:])
        return output

    def begin(self, call: Call) -> None:
        """Makes an empty sequence for each of the batch."""
        if call.query.dtype not in _STORAGE:
            raise ValueError(f"expected a model in float32, float16 or bfloat16, got {call.query.dtype}")
        self.module, self.dtype = weakref.ref(call.module), call.query.dtype
        self.sequences = [self.start(call) for _ in call.query]
        self.steps = [0] * len(self.sequences)

    def start(self, call: Call) -> Attention:
        return Attention(
            self.pipeline,
            call.query.shape[1],
            call.key.shape[1],
            call.key.shape[3],
            call.value.shape[3],
            layer=self.number,
            sequence=next(self.numbers),
            scale=call.options.get("scaling"),
            **{"storage": _STORAGE[call.query.dtype], **self.options},
        )

    def decode(self, call: Call) -> torch.Tensor:
        """Tokens after the first prompt: each attends by the pipeline."""
        new = call.query.shape[2]
        visible = [[len(one) + place + 1 for place in range(new)] for one in self.sequences]
        self.check_mask(call.mask, visible)
        append_batch(self.sequences, call.key, call.value)
        outputs = attend_batch(self.sequences, call.query, visible, threads=self.options.get("threads"))
        self.note(outputs, new)
        stacked = outputs[0].out[None] if len(outputs) == 1 else np.stack([one.out for one in outputs])
        return torch.from_numpy(stacked).to(call.query.dtype).transpose(1, 2)

    def check_mask(self, mask: torch.Tensor | None, visible: list[list[int]]) -> None:
        """Refuses a mask that hides more than the padding of the first prompt and what is yet to come."""
        if mask is None or mask is self.turn.checked_mask:
            return
        seen = (mask if mask.dtype == torch.bool else mask == 0)[:, 0].sum(-1)
        if seen.tolist() != visible:
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


def _unpadded(call: Call, place: int) -> slice | torch.Tensor:
    """The tokens of a prompt that its last one sees: without padding."""
    if call.mask is None:
        return slice(None)
    last = call.mask[place, 0, -1]
    seen = last if last.dtype == torch.bool else last == 0
    hidden = len(seen) - int(seen.sum())
    return slice(hidden, None) if bool(seen[hidden:].all()) else seen
