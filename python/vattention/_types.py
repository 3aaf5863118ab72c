"""Types of the dicts in reports and results."""

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

Kind = Literal["none", "asymptotic", "finite-sample", "exact"]
"""Kind of evidence behind a promise or an error bar, weakest first."""


class Problem(TypedDict):
    """Single fault of a pipeline file."""

    message: str
    """Description of the fault."""
    help: str | None
    """Similar names, or the allowed values."""
    file: str | None
    line: int | None
    """Line number, from 1."""
    column: int | None
    """Column number, from 1."""


class Promise(TypedDict):
    """Pr(error of the target > epsilon) <= delta, at one step."""

    target: Literal["sdpa", "denominator", "numerator"]
    epsilon: float
    """Largest relative error that satisfies the promise, in (0, 1)."""
    delta: float
    """Probability with which the error may exceed epsilon, in (0, 1)."""
    scope: Literal["row", "step"]
    """Rows that share delta: one query head ("row"), or all query heads of a layer ("step")."""
    reference: Literal["stored", "unrounded"]
    """Rows that errors are relative to: those of the cache, or those before they were rounded."""


class RowReport(TypedDict):
    """Tokens that one query head read for one query, and the guarantee for its output."""

    query: int
    """Index of the query in the call."""
    query_head: int
    visible: int
    """Number of tokens that the row may read."""
    read: int
    """Number of tokens that the row read: `certain` + `sampled`."""
    certain: int
    """Number of tokens that selectors picked, which are always read."""
    sampled: int
    """Number of tokens drawn at random."""
    read_by_group: int
    """Number of distinct tokens read by all query heads of the row's KV head."""
    budget: int | None
    """Sample size that the estimator requested at its last check, in tokens."""
    fell_back: bool
    """True if the row read all tokens because a long token list would have been slower."""
    unobserved: bool
    """True if the row read all tokens because a selector was shown no prompt to learn from."""
    kind: Kind
    """Kind of evidence behind the promise and the error bar."""
    assumes: list[str]
    """Assumptions behind the promise and the error bar: "normal", "moments", "tail-seen"."""
    promised: bool
    """True if the pipeline promises an error within epsilon."""
    held: bool
    """True if the sample was large enough for the promise."""
    bar: float | None
    """Bound on the relative error, exceeded with a probability of at most delta.

    None if the sample cannot give an error bar, infinite if the error may be arbitrarily large.
    """
    error: float | None
    """Relative error of the output, |out - dense| / |dense|; None without `check=True`."""
    violated: bool | None
    """True if the row has a promise and the error of its target exceeds epsilon.

    None without `check=True`, or if the pipeline has no promise.
    """


class Summary(TypedDict):
    """Summary of the rows of an output; a row is one query head for one query."""

    rows: int
    """Number of rows: query heads times queries."""
    visible: int
    """Largest number of tokens that any row may read."""
    density: float
    """Share of the visible tokens that all query heads of a KV head read, mean over rows."""
    density_per_head: float
    """Share of the visible tokens that a single query head read, mean over rows."""
    sampled: float
    """Number of tokens drawn at random, mean over rows."""
    fell_back: int
    """Number of rows that read all tokens because a long token list would have been slower."""
    unobserved: int
    """Number of rows that read all tokens because a selector was shown no prompt."""
    exact: int
    """Number of rows whose output is exact."""
    promised: int
    """Number of rows with a promise."""
    held: int
    """Number of rows whose sample was large enough for the promise."""
    kind: Kind | None
    """Weakest kind of evidence of any row."""
    bar: float | None
    """Mean of the finite error bars of rows that are not exact."""
    widest_bar: float | None
    """Largest finite error bar of rows that are not exact."""
    bounded: int
    """Number of rows that are not exact and have a finite error bar."""
    unbounded: int
    """Number of rows with an infinite error bar."""
    error: float | None
    """Mean relative error of the outputs; None without `check=True`."""
    largest_error: float | None
    """Largest relative error of an output; None without `check=True`."""
    violations: int | None
    """Number of rows whose error exceeds epsilon; None without `check=True` or a promise."""
    violated_steps: int | None
    """Number of queries with at least one row whose error exceeds epsilon.

    None without `check=True` or a promise.
    """


class StepReport(Summary):
    """Summary of one layer of one sequence at one step."""

    layer: int
    step: int
    """Number of tokens that the sequence decoded before this step."""
    sequence: int
    """Index of the sequence in the batch."""


class LayerLayout(TypedDict):
    """Dimensions of a layer of a trace."""

    query_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    tokens: int
    queries: int
    prompt: int
    causal: bool
    classes: bool
    soft_cap: bool
    sinks: bool
    storage: Literal["f32", "f16", "bf16"]


class TraceLayer(TypedDict):
    """Arrays of one layer of a trace."""

    queries: NDArray[np.float32]
    """Queries, `[query_heads, queries, head_dim]`, not yet multiplied by the scale."""
    keys: NDArray[np.float32]
    """Keys, `[kv_heads, tokens, head_dim]`."""
    values: NDArray[np.float32]
    """Values, `[kv_heads, tokens, value_dim]`."""
    prompt: NotRequired[NDArray[np.float32]]
    """Queries of the prompt's last tokens, `[query_heads, prompt, head_dim]`."""
    visible: NotRequired[NDArray[np.int64]]
    """Number of tokens that each query may read, `[queries]`; all tokens if absent."""
    prompt_tokens: NotRequired[int]
    """Number of tokens of the prompt; all tokens if absent."""
    classes: NotRequired[NDArray[np.uint8]]
    """Class of each token, `[tokens]`: 0 other, 1 punctuation, 2 special."""
    soft_cap: NotRequired[float]
    """Cap of the logits; none if absent."""
    sink_logits: NotRequired[NDArray[np.float32]]
    """Logits of the attention sinks that are parameters, `[query_heads]`; none if absent."""


Result = dict[str, Any]
"""Result of a tool: nested dicts and lists of numbers and strings."""

Progress = Callable[[int, int], object] | None
"""Callback that receives the number of steps done and the total number."""
