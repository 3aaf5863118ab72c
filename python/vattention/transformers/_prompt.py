"""First prompt of a layer's sequences, which torch reads in one call or in chunks."""

import torch

from vattention._vattention import Attention
from vattention.transformers._function import Call

OBSERVED = 64
"""Number of last queries of a prompt that selectors are shown, as in the crate `vattention-llm`."""


class Prompt:
    """Keys, values and last queries of a prompt, until the pipeline's first step.

    Tensors are never changed in place, so copies share them.
    """

    def __init__(self, batch: int) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.queries: list[torch.Tensor | None] = [None] * batch
        """Last queries of each sequence's tokens: [query_heads, up to OBSERVED, head_dim]."""
        self.real_tokens: torch.Tensor | None = None
        """Flags of the tokens that are not padding, [batch, tokens]; None means all tokens."""
        self.is_ended = False
        """True if no further call adds tokens."""

    def extend(self, call: Call) -> Call:
        """Appends the tokens of a call, and returns it with the keys and values of all tokens."""
        keys, values = _owned(call.key), _owned(call.value)
        if self.keys is not None and self.values is not None:
            keys, values = (
                torch.cat([self.keys, keys], dim=2),
                torch.cat([self.values, values], dim=2),
            )
        self.keys, self.values = keys, values
        self.real_tokens = _find_real_tokens(call)
        first = keys.shape[2] - call.key.shape[2]
        for place, queries in enumerate(call.query):
            real = (
                queries if self.real_tokens is None else queries[:, self.real_tokens[place, first:]]
            )
            earlier = self.queries[place]
            real = real if earlier is None else torch.cat([earlier, real], dim=1)
            self.queries[place] = real[:, -OBSERVED:].detach().clone()
        return call._replace(key=keys, value=values)

    def show(self, place: int, attention: Attention) -> None:
        """Appends a sequence's tokens, and shows its selectors the last queries."""
        queries = self.queries[place]
        if self.keys is None or self.values is None or queries is None:
            return
        real = self._real_tokens_of(place)
        attention.append(self.keys[place][:, real], self.values[place][:, real])
        attention.observe(queries)

    def crop(self, removed: int) -> bool:
        """Removes the newest tokens and ends the prompt.

        Returns False, and changes nothing, if none of the stored queries would remain.
        """
        if self.keys is None or self.values is None:
            return False
        queries = []
        for place, earlier in enumerate(self.queries):
            real = (
                removed
                if self.real_tokens is None
                else int(self.real_tokens[place, -removed:].sum())
            )
            if earlier is None or earlier.shape[1] <= real:
                return False
            queries.append(earlier[:, : earlier.shape[1] - real])
        self.keys, self.values = self.keys[:, :, :-removed], self.values[:, :, :-removed]
        self.queries = [*queries]
        self.real_tokens = None if self.real_tokens is None else self.real_tokens[:, :-removed]
        self.is_ended = True
        return True

    def take(self, places: list[int]) -> "Prompt":
        """Returns the prompt of the sequences at these places."""
        taken = Prompt(len(places))
        taken.queries = [self.queries[place] for place in places]
        taken.keys = None if self.keys is None else self.keys[places]
        taken.values = None if self.values is None else self.values[places]
        taken.real_tokens = None if self.real_tokens is None else self.real_tokens[places]
        taken.is_ended = self.is_ended
        return taken

    def __deepcopy__(self, memo: dict[int, object]) -> "Prompt":
        copied = Prompt(0)
        copied.__dict__.update(self.__dict__, queries=list(self.queries))
        return copied

    def _real_tokens_of(self, place: int) -> slice | torch.Tensor:
        """Returns the tokens of a sequence that are not padding.

        If all padding is at the beginning, the result is a slice, so that indexing copies nothing.
        """
        if self.real_tokens is None:
            return slice(None)
        is_real = self.real_tokens[place]
        padding = len(is_real) - int(is_real.sum())
        return slice(padding, None) if bool(is_real[padding:].all()) else is_real


def _find_real_tokens(call: Call) -> torch.Tensor | None:
    """Returns the tokens that are not padding, [batch, tokens]; None without padding.

    These are the tokens that the mask shows to the last query.
    """
    if call.mask is None:
        return None
    last = call.mask[:, 0, -1]
    is_real = last if last.dtype == torch.bool else last == 0
    return None if bool(is_real.all()) else is_real.expand(len(call.query), -1).clone()


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, copied if it is a part of a larger one, which would stay in memory."""
    detached = tensor.detach()
    is_part = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return detached.clone() if is_part else detached
