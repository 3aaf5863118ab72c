"""Addition of summaries."""

from typing import cast

from vattention._types import Summary

_KINDS = ["none", "asymptotic", "finite-sample", "exact"]
"""Kinds of evidence, weakest first."""
_COUNTS = [
    "rows",
    "fell_back",
    "unobserved",
    "exact",
    "promised",
    "held",
    "bounded",
    "unbounded",
    "violations",
    "violated_steps",
]
_LARGEST = ["visible", "widest_bar", "largest_error"]
_MEANS = {"density": "rows", "density_per_head": "rows", "sampled": "rows", "error": "rows"}
_MEANS["bar"] = "bounded"
"""Means, with the counts that are their weights."""


def add_summaries(a: Summary | None, b: Summary | None) -> Summary | None:
    """Returns the summary of the rows of both summaries; None means no rows."""
    if a is None or b is None:
        return b if a is None else a
    first, second = cast(dict[str, float | None], a), cast(dict[str, float | None], b)
    total: dict[str, object] = {}
    for name in first:
        values = [value for value in (first[name], second[name]) if value is not None]
        if name == "kind":
            total[name] = min(values, key=lambda kind: _KINDS.index(str(kind)), default=None)
        elif not values:
            total[name] = None
        elif name in _COUNTS:
            total[name] = sum(values)
        elif name in _LARGEST:
            total[name] = max(values)
        else:
            weight = _MEANS[name]
            parts = [(part[name], part[weight]) for part in (first, second)]
            weighed = [(x, count) for x, count in parts if x is not None and count]
            count = sum(count for _, count in weighed)
            total[name] = sum(x * count for x, count in weighed) / count if count else None
    return cast(Summary, total)
