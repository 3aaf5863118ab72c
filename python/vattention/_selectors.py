"""Selectors written in Python."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from vattention._vattention import register_selector


class Selector(Protocol):
    """Selector of one KV head of one layer of one sequence.

    Each KV head has its own object. It is constructed when the sequence starts, with the pipeline's
    `settings` as keyword arguments, and copied by `copy.deepcopy` when the sequence is forked.
    """

    def append(self, keys: NDArray[np.float32]) -> None:
        """Receives the keys of new tokens, `[new, head_dim]`, in order and as they are stored."""
        ...

    def select(
        self, query: NDArray[np.float32], visible: int, taken: NDArray[np.int64]
    ) -> Iterable[int]:
        """Returns tokens that a query head always reads: integers in `0..visible`, in any order.

        `query`, `[head_dim]`, is already multiplied by the scale of the logits. `taken`, ascending,
        has the tokens that earlier selectors of the pipeline picked. More than `visible` tokens may
        have been appended; the result must not depend on the additional ones.
        """
        ...


_Class = TypeVar("_Class", bound=Callable[..., Selector])


def selector(name: str) -> Callable[[_Class], _Class]:
    """Registers a class with the methods of `Selector` under a name, for pipelines of this process.

        @vattention.selector("every-nth")
        class EveryNth:
            def __init__(self, n):
                self.n = n

            def append(self, keys):
                pass

            def select(self, query, visible, taken):
                return range(0, visible, self.n)

    A pipeline refers to the class by this name, alone or together with native selectors:

        [[selectors]]
        type = "python"
        name = "every-nth"
        settings = { n = 8 }

    Python selectors are meant for prototypes. Each call of `select` (one per query head and step)
    costs tens of microseconds in addition to the work of the class, and calls never run in
    parallel. `vattention.testing.laws` tests the rules that every selector must obey. A class that
    is registered under a name in use replaces the earlier class in sequences that start later.
    """

    def register(class_: _Class) -> _Class:
        register_selector(name, class_)
        return class_

    return register
