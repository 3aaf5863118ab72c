"""Selectors written in Python."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from vattention._vattention import register_selector


class Selector(Protocol):
    """Picks tokens for the queries of one KV head of one layer of one sequence.

    Each KV head has an object of its own, made when the sequence starts, with the pipeline's `settings` as keywords. When the sequence
    forks, `copy.deepcopy` copies it.
    """

    def append(self, keys: NDArray[np.float32]) -> None:
        """Takes note of new tokens' keys `[new, head_dim]`, in order, as they are stored."""
        ...

    def select(
        self, query: NDArray[np.float32], visible: int, taken: NDArray[np.int64]
    ) -> Iterable[int]:
        """Returns tokens that a query head reads for certain: integers in `0..visible`, in any order.

        `query` `[head_dim]` is scaled, `taken` are the tokens that selectors before this one took, ascending. More tokens than `visible`
        may have been appended; what is picked may not depend on those.
        """
        ...


_Class = TypeVar("_Class", bound=Callable[..., Selector])


def selector(name: str) -> Callable[[_Class], _Class]:
    """Registers a class with `append` and `select` under a name, for pipelines of this process.

        @vattention.selector("every-nth")
        class EveryNth:
            def __init__(self, n):
                self.n = n

            def append(self, keys):
                pass

            def select(self, query, visible, taken):
                return range(0, visible, self.n)

    A pipeline names it beside native selectors:

        [[selectors]]
        type = "python"
        name = "every-nth"
        settings = { n = 8 }

    It is for trying out ideas: each query head's pick at each step takes tens of microseconds more than its own work, and no two
    heads are asked at the same time. `vattention.testing.laws` says what a selector must heed. A second class of one name takes the place
    of the first, in sequences that start later.
    """

    def register(class_: _Class) -> _Class:
        register_selector(name, class_)
        return class_

    return register
