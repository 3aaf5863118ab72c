"""Layer of the cache that attends by a pipeline."""

import weakref
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import torch

from vattention._types import StepReport, Summary
from vattention._vattention import Attention, Output, Pipeline, append_batch, attend_batch
from vattention.transformers._function import Call, refuse_attention, torch_attention
from vattention.transformers._layer import Layer, Turn, copy_object
from vattention.transformers._places import places_of
from vattention.transformers._prompt import Prompt
from vattention.transformers._summary import add_summaries

_STORAGE: dict[torch.dtype, Literal["f32", "f16", "bf16"]] = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
}


class Counter:
    """Source of sequence numbers, which key the samples; forks of a cache share it."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1


class PipelineLayer(Layer):  # type: ignore[no-untyped-call, unused-ignore]
    """Layer that attends by a pipeline, with one `Attention` for each sequence of the batch."""

    def __init__(
        self,
        number: int,
        window: int | None,
        turn: Turn,
        pipeline: Pipeline,
        options: dict[str, Any],
        prompt_tokens: int | None,
        report: bool,
    ) -> None:
        super().__init__(number, window, turn)
        self.pipeline = pipeline
        self.options = options
        self.prompt_tokens = prompt_tokens
        self.report = report
        self.clear()

    def clear(self) -> None:
        self.sequences: list[Attention] = []
        self.counter = Counter()
        self.numbers: list[int] = []
        """Number of each sequence, which keys its samples."""
        self.steps: list[int] = []
        self.summary: Summary | None = None
        self.entries: list[StepReport] = []
        """Reports of the steps, if the cache was made with `report=True`."""
        self.prompt: Prompt | None = None
        """The first prompt, until the pipeline's first step."""
        self.module: weakref.ref[torch.nn.Module] | None = None
        self.dtype: torch.dtype | None = None
        self.shape = (1, 1, 1, 1)
        """Numbers of query heads and KV heads, and dimensions of keys and values."""
        self.scale: float | None = None
        self.soft_cap: float | None = None
        self.sink_logits: list[float] | None = None

    def compute(self, call: Call) -> torch.Tensor:
        refuse_attention(self.number, call)
        if self.length == 0:
            self.begin(call)
        self.check_model(call)
        if self.prompt is not None and self.is_prompt(call.query.shape[2]):
            return torch_attention(self.prompt.extend(call))
        self.end_prompt()
        return self.decode(call)

    def is_prompt(self, new: int) -> bool:
        """Returns True if a call of `new` tokens belongs to the first prompt."""
        if self.prompt is None or self.prompt.is_ended:
            return False
        if self.length == 0:
            return True
        return new > 1 if self.prompt_tokens is None else self.length + new <= self.prompt_tokens

    def begin(self, call: Call) -> None:
        """Makes an empty `Attention` for each sequence of the batch."""
        if call.query.dtype not in _STORAGE:
            raise ValueError(
                f"expected a model in float32, float16 or bfloat16, got {call.query.dtype}"
            )
        self.module, self.dtype = weakref.ref(call.module), call.query.dtype
        self.prompt = Prompt(len(call.query))
        self.numbers = [self.counter.next() for _ in call.query]
        self.shape = (
            call.query.shape[1],
            call.key.shape[1],
            call.key.shape[3],
            call.value.shape[3],
        )
        self.scale, self.soft_cap = call.options.get("scaling"), call.soft_cap
        sinks = call.sink_logits
        self.sink_logits = None if sinks is None else sinks.detach().float().tolist()
        self.sequences = [self.start(number) for number in self.numbers]
        self.steps = [0] * len(self.sequences)

    def start(self, number: int) -> Attention:
        options = {"storage": _STORAGE[self.dtype], **self.options} if self.dtype else self.options
        return Attention(
            self.pipeline,
            *self.shape,
            layer=self.number,
            sequence=number,
            scale=self.scale,
            soft_cap=self.soft_cap,
            sink_logits=self.sink_logits,
            **options,
        )

    def check_model(self, call: Call) -> None:
        """Raises RuntimeError for a model other than the one that filled the cache.

        A cache from a file belongs to the first model that uses it.
        """
        if self.module is None:
            self.module = weakref.ref(call.module)
        if self.module() is not call.module or call.query.dtype != self.dtype:
            raise RuntimeError(
                "this cache was filled by another model, or before the model's dtype changed: "
                "expected reset()"
            )

    def end_prompt(self) -> None:
        """Appends the first prompt to the sequences, and shows selectors its last queries."""
        if self.prompt is None:
            return
        if not self.sequences:  # The cache comes from a file.
            self.sequences = [self.start(number) for number in self.numbers]
        for place, attention in enumerate(self.sequences):
            self.prompt.show(place, attention)
        self.prompt = None

    def decode(self, call: Call) -> torch.Tensor:
        """Appends the tokens of a call after the first prompt, and attends by the pipeline."""
        new = call.query.shape[2]
        lengths = [len(attention) for attention in self.sequences]
        visible = [list(range(length + 1, length + new + 1)) for length in lengths]
        self.check_mask(call.mask, visible)
        append_batch(self.sequences, call.key, call.value)
        outputs = attend_batch(
            self.sequences, call.query, visible, threads=self.options.get("threads")
        )
        self.note(outputs, new)
        outs = [output.out for output in outputs]
        stacked = outs[0][None] if len(outs) == 1 else np.stack(outs)
        return torch.from_numpy(stacked).to(call.query.dtype).transpose(1, 2)

    def check_mask(self, mask: torch.Tensor | None, visible: list[list[int]]) -> None:
        """Raises ValueError for a mask that hides more than padding and later tokens.

        Only the first prompt may have padding.
        """
        if mask is None or mask is self.turn.checked_mask:
            return
        visible_by_mask = (mask if mask.dtype == torch.bool else mask == 0)[:, 0].sum(-1)
        if visible_by_mask.tolist() != visible:
            raise ValueError(
                "attention_mask: expected a mask that hides nothing but later tokens and the "
                "padding of the first prompt"
            )
        self.turn.checked_mask = mask

    def note(self, outputs: Sequence[Output], new: int) -> None:
        """Adds the outputs to summary and reports, except for rows that have ended."""
        for place, output in enumerate(outputs):
            if not self.turn.has_ended(place):
                summary = output.summary()
                self.summary = add_summaries(self.summary, summary)
                if self.report:
                    step = {"layer": self.number, "step": self.steps[place], "sequence": place}
                    self.entries.append(cast(StepReport, {**step, **summary}))
            self.steps[place] += new

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the newest `-tokens_to_remove` tokens of every sequence.

        Older versions of transformers pass the number of tokens to keep, which is positive.
        """
        removed = (
            -tokens_to_remove if tokens_to_remove <= 0 else max(self.length - tokens_to_remove, 0)
        )
        removed = min(removed, self.length)
        if self.prompt is not None:
            self.prompt.is_ended = True
        if removed == 0:
            return
        if removed == self.length:
            self.prompt = None
        elif self.prompt is None or not self.prompt.crop(removed):
            self.truncate(removed)
        self.length -= removed

    def truncate(self, removed: int) -> None:
        """Removes tokens of every sequence, or of no sequence if one of them raises."""
        self.end_prompt()
        shorter = [attention.fork() for attention in self.sequences]
        try:
            for attention in shorter:
                attention.truncate(max(len(attention) - removed, 0))
        except RuntimeError as error:
            raise RuntimeError(
                f"crop: layer {self.number}: {error}; fork() or copy.deepcopy copies a cache: "
                "copy it before the tokens that are to be removed, and continue with the copy"
            ) from error
        self.sequences = shorter

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.take(self.places_of(beam_idx, "reorder_cache"))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.take(self.places_of(indices, "batch_select_indices"))

    def batch_repeat_interleave(self, repeats: int) -> None:
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
            raise ValueError(
                "batch_repeat_interleave: expected a whole number of repeats, 1 or more, "
                f"got {repeats!r}"
            )
        self.take([place for place in range(len(self.numbers)) for _ in range(repeats)])

    def places_of(self, indices: Any, name: str) -> list[int]:
        """Converts indices or a mask to places in the batch; empty before the first prompt."""
        return places_of(indices, len(self.numbers), name) if self.length else []

    def take(self, places: list[int]) -> None:
        """Continues with the sequences at these places.

        A sequence that occurs several times is forked; the forks have independent samples.
        """
        if self.length == 0:
            return
        taken: list[Attention] = []
        numbers: list[int] = []
        for place in places:
            number = self.counter.next() if self.numbers[place] in numbers else self.numbers[place]
            if self.sequences:
                attention = self.sequences[place]
                taken.append(attention if number == self.numbers[place] else attention.fork(number))
            numbers.append(number)
        self.sequences, self.numbers, self.steps = (
            taken,
            numbers,
            [self.steps[place] for place in places],
        )
        self.prompt = None if self.prompt is None else self.prompt.take(places)

    def renumber(self, counter: Counter) -> None:
        """Gives every sequence a number that no other fork has, and so independent samples."""
        self.counter = counter
        self.numbers = [counter.next() for _ in self.numbers]
        self.sequences = [
            attention.fork(number)
            for attention, number in zip(self.sequences, self.numbers, strict=False)
        ]

    def reset(self) -> None:
        super().reset()
        self.clear()

    def __deepcopy__(self, memo: dict[int, object]) -> "PipelineLayer":
        return copy_object(self, memo)

    def __getstate__(self) -> dict[str, Any]:
        if self.length and self.prompt is None:
            raise TypeError(
                f"layer {self.number} of this cache has attended by its pipeline; samples and what "
                "selectors learned cannot be saved: save the cache before its first step, or "
                "copy it by fork() or copy.deepcopy"
            )
        return {**self.__dict__, "sequences": [], "module": None}
