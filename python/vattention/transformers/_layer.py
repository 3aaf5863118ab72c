"""Base class of the cache's layers, and the order in which they run."""

import copy
import threading
from typing import Any, TypeVar

import torch
from transformers.cache_utils import CacheLayerMixin

from vattention.transformers._function import HANDLE, NAME, Call

_T = TypeVar("_T")


class Turn:
    """State of a step, which goes through the layers in order, on one thread."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.layers: list[Layer] = []
        self.end_tokens: set[int] | None = None
        """Tokens that end or pad a row; None means those of the model's generation_config."""
        self.reset()

    def reset(self) -> None:
        self.next = 0
        self.thread: int | None = None
        self.checked_mask: torch.Tensor | None = None
        self.ended: list[bool] = []
        """Flags of the rows that ended before this step; empty if no row has ended."""

    def begin(self, layer: "Layer") -> None:
        """Raises RuntimeError unless `layer` is the next one to receive tokens."""
        implementation = getattr(self.config, "_attn_implementation", NAME)
        if implementation != NAME:
            raise RuntimeError(
                f"the model's attention is `{implementation}`: expected "
                f"model.set_attn_implementation({NAME!r}) before it uses this cache; if that was "
                f"done, {self._unsupported()}"
            )
        thread = threading.get_ident()
        if self.thread not in (None, thread):
            raise RuntimeError(
                "this cache is in use by another thread: expected one thread at a time"
            )
        previous = self.layers[self.next]
        if previous.pending is not None and layer.index == previous.index + 1:
            raise RuntimeError(
                f"layer {previous.number} did not call the attention function {NAME!r}: expected "
                f"model.set_attn_implementation({NAME!r}); if that was done, {self._unsupported()}"
            )
        if layer.index != self.next or layer.pending is not None:
            raise RuntimeError(
                "a step of this cache ended in the middle: expected reset() before it is used again"
            )
        self.thread = thread

    def end(self, layer: "Layer") -> None:
        """Moves on to the next layer after `layer` has attended."""
        self.next = layer.index + 1
        if self.next == len(self.layers):
            self.reset()

    def has_ended(self, place: int) -> bool:
        """Returns True if a row is fed padding in this step."""
        return bool(self.ended) and self.ended[place]

    def _unsupported(self) -> str:
        names = getattr(self.config, "architectures", None) or [type(self.config).__name__]
        return (
            f"{names[0]} has attention code of its own, which no attention function replaces: "
            "expected a model that calls transformers' AttentionInterface, such as Llama or Qwen3"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> "Turn":
        # The config is the model's, and names its current attention function, so it is shared.
        return copy_object(self, memo, shared=("config",))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "config": None, "thread": None}


def copy_object(source: _T, memo: dict[int, object], shared: tuple[str, ...] = ()) -> _T:
    """Copies an object deeply, except for the attributes in `shared`."""
    copied = type(source).__new__(type(source))
    memo[id(source)] = copied
    for name, part in source.__dict__.items():
        setattr(copied, name, part if name in shared else copy.deepcopy(part, memo))
    return copied


class Layer(CacheLayerMixin):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Layer of the cache that the attention function finds by an attribute of the keys."""

    is_compileable = False
    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, number: int, window: int | None, turn: Turn) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.number = number
        self.window = window
        self.turn = turn
        self.index = len(turn.layers)
        self.length = 0
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None
        turn.layers.append(self)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        length = self.length + key_states.shape[2]
        if self.window is not None and length > self.window:
            raise ValueError(
                f"layer {self.number} slides over {self.window} tokens: expected no more, "
                f"got {length}"
            )
        self.turn.begin(self)
        self.lazy_initialization(key_states, value_states)
        self.pending = (key_states, value_states)
        setattr(key_states, HANDLE, self)
        return self.pending

    def attend(self, call: Call) -> torch.Tensor:
        """Stores the tokens of `update` and attends, `[batch, queries, heads, dim]`."""
        if (
            self.pending is None
            or self.pending[0] is not call.key
            or self.pending[1] is not call.value
        ):
            raise RuntimeError(
                f"layer {self.number} changes keys or values after its cache: expected the "
                "attention function to receive those of the cache"
            )
        output = self.compute(call)
        self.pending = None
        self.length += call.key.shape[2]
        self.turn.end(self)
        return output

    def compute(self, call: Call) -> torch.Tensor:
        """Computes attention, `[batch, queries, heads, dim]`."""
        raise NotImplementedError

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int | torch.Tensor) -> tuple[int, int]:
        # Older versions of transformers pass the positions of the queries.
        new = query_length if isinstance(query_length, int) else len(query_length)
        return self.length + new, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # Its name in older versions.

    def reset(self) -> None:
        self.length, self.pending = 0, None
        self.turn.reset()
