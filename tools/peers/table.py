"""The results as a markdown table, and as JSON."""

import json
from pathlib import Path

from .entries import Sequential
from .timing import Timed

DENSE = "vattention dense"


def markdown(results: list[Timed]) -> str:
    """One table for each number of tokens and of threads."""
    settings = dict.fromkeys(timed.setting() for timed in results)
    return "\n".join(
        one_setting([t for t in results if t.setting() == setting]) for setting in settings
    )


def one_setting(results: list[Timed]) -> str:
    references = [
        timed for timed in results if timed.name.startswith("vattention") and timed.name != DENSE
    ]
    heads = [
        "entry",
        "dtype",
        "ms",
        "GB/s",
        "of sequential",
        "rows read",
        "error, worst head",
        "mean",
        "x dense",
    ]
    heads += [f"x {timed.name.removeprefix('vattention ')} {timed.dtype}" for timed in references]
    lines = [
        f"\n{results[0].setting()}\n",
        row(heads),
        row(["---", "---", *["--:"] * (len(heads) - 2)]),
    ]
    sequential = next((timed for timed in results if timed.name == Sequential.label), None)
    for timed in results:
        cells = [timed.name, timed.dtype, f"{1e3 * timed.seconds():.3g}", f"{timed.rate():.1f}"]
        cells.append(f"{timed.rate() / sequential.rate():.2f}" if sequential else "")
        attends = timed is not sequential
        cells.append(f"{timed.density:.1%}" if attends else "")
        cells += [
            f"{error:.1e}" if error is not None else ""
            for error in (timed.error_worst, timed.error_mean)
        ]
        dense = next((t for t in results if (t.name, t.dtype) == (DENSE, timed.dtype)), None)
        cells += [
            f"{timed.over(other):.3g}" if other and attends else ""
            for other in [dense, *references]
        ]
        lines.append(row(cells))
    return "\n".join(lines)


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


LEGEND = """
ms: the median over rounds. GB/s: the rows of keys and values that were attended to, each counted once for
its KV head; what selectors read to choose them is not counted. x dense: this entry's time over that of
`vattention dense` in the same precision, the median over rounds; the further columns likewise, over a
pipeline in its own precision. Error: relative to attention in f64 over the same stored numbers, one decode
step, Euclidean norm of a head's output."""


def write_json(path: Path, facts: dict, results: list[Timed]) -> None:
    text = json.dumps({**facts, "results": [timed.summary() for timed in results]}, indent=1)
    path.write_text(text + "\n")
