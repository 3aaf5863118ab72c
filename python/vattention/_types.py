"""The dicts that reports and results are made of."""

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

Kind = Literal["none", "asymptotic", "finite-sample", "exact"]
"""What a promise or an error bar rests on, weakest first."""


class Problem(TypedDict):
    """One thing that is wrong with a pipeline."""

    message: str
    """What is wrong."""
    help: str | None
    """What may have been meant, or what is allowed."""
    file: str | None
    line: int | None
    """From 1."""
    column: int | None
    """From 1."""


class Promise(TypedDict):
    """Pr(error of the target > epsilon) <= delta, at one step."""

    target: Literal["sdpa", "denominator", "numerator"]
    epsilon: float
    """The relative error allowed, in (0, 1)."""
    delta: float
    """The probability with which it may be exceeded, in (0, 1)."""
    scope: Literal["row", "step"]


class RowReport(TypedDict):
    """What one query head read at one step, and what that is worth."""

    query: int
    """The query's place in the call."""
    query_head: int
    visible: int
    """Tokens that the row might have read."""
    read: int
    """Tokens that it read: certain and sampled."""
    certain: int
    """Tokens read for certain."""
    sampled: int
    """Tokens drawn by chance."""
    read_by_group: int
    """Different tokens that the query heads of its KV head read together."""
    budget: int | None
    """Tokens that the estimator asked for at last."""
    fell_back: bool
    """Whether everything was read because that is faster than so long a list."""
    unobserved: bool
    """True if everything was read because a selector learns from a prompt and was shown none."""
    kind: Kind
    """What the promise and the error bar rest on."""
    assumes: list[str]
    """What they take for granted: normal, moments, tail-seen."""
    promised: bool
    """Whether the pipeline promises an error within epsilon."""
    held: bool
    """Whether the sample was found large enough for the promise."""
    bar: float | None
    """The relative error that is exceeded with probability delta at most; None if the sample does not say, infinite if it says nothing."""
    error: float | None
    """With check=True: the output's relative error, |out - dense| / |dense|."""
    violated: bool | None
    """With check=True and a promise: whether the error of what is promised exceeds epsilon."""


class Summary(TypedDict):
    """The rows of an output together."""

    rows: int
    """Query heads times queries."""
    visible: int
    """The most tokens that any row might have read."""
    density: float
    """The share of these that the query heads of a KV head read together, mean over rows."""
    density_per_head: float
    """The share that each query head read, mean over rows."""
    sampled: float
    """Tokens drawn by chance, mean over rows."""
    fell_back: int
    """Rows in which everything was read because that is faster."""
    unobserved: int
    """Number of rows that read everything because a selector was shown no prompt."""
    exact: int
    """Rows that read everything."""
    promised: int
    """Rows with a promise."""
    held: int
    """Rows whose sample was found large enough."""
    kind: Kind | None
    """The weakest of the rows'."""
    bar: float | None
    """The mean of the finite error bars of rows that did not read everything."""
    widest_bar: float | None
    """The largest of them."""
    bounded: int
    """Rows with a finite error bar that did not read everything."""
    unbounded: int
    """Rows whose error bar is infinite."""
    error: float | None
    """With check=True: the mean relative error of the outputs."""
    largest_error: float | None
    """With check=True: the largest."""
    violations: int | None
    """With check=True and a promise: rows whose error exceeds epsilon."""
    violated_steps: int | None
    """With check=True and a promise: queries of which any row's does."""


class StepReport(Summary):
    """The summary of one layer of one sequence at one step."""

    layer: int
    step: int
    """Steps of that sequence before it."""
    sequence: int
    """The sequence's place in the batch."""


class LayerLayout(TypedDict):
    """The dimensions of a trace's layer."""

    query_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    tokens: int
    queries: int
    prompt: int
    causal: bool
    classes: bool
    storage: Literal["f32", "f16", "bf16"]


class TraceLayer(TypedDict):
    """One layer of a trace."""

    queries: NDArray[np.float32]
    """[query_heads, queries, head_dim], not scaled."""
    keys: NDArray[np.float32]
    """[kv_heads, tokens, head_dim]."""
    values: NDArray[np.float32]
    """[kv_heads, tokens, value_dim]."""
    prompt: NotRequired[NDArray[np.float32]]
    """[query_heads, prompt, head_dim]: queries of the prompt's last tokens."""
    visible: NotRequired[NDArray[np.int64]]
    """[queries]: how many tokens each query sees; absent: all."""
    prompt_tokens: NotRequired[int]
    """Tokens of the prompt; absent: all."""
    classes: NotRequired[NDArray[np.uint8]]
    """[tokens]: what each token is in the text: 0 other, 1 punctuation, 2 special."""


Result = dict[str, Any]
"""What a tool found: dicts, lists, numbers and texts."""

Progress = Callable[[int, int], object] | None
"""Is called with the steps done and of all."""
