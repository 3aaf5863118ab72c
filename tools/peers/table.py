"""Output of the results as Markdown tables and JSON."""

import json
from pathlib import Path

from .entries import Sequential
from .timing import Timed

DENSE = "vattention dense"


def markdown(results: list[Timed]) -> str:
    """Formats a table for each number of tokens and threads."""
    settings = dict.fromkeys(timed.setting() for timed in results)
    return "\n".join(
        format_table([t for t in results if t.setting() == setting]) for setting in settings
    )


def format_table(results: list[Timed]) -> str:
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
            f"{timed.ratio(other):.3g}" if other and attends else ""
            for other in [dense, *references]
        ]
        lines.append(row(cells))
    return "\n".join(lines)


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


LEGEND = """
ms: median over rounds. GB/s: rate of reading the keys and values that were attended to, each row
once per KV head; reads of selectors do not count. x dense: this entry's time divided by that of
`vattention dense` in the same precision, median over rounds. Further columns: this entry's time
divided by that of a pipeline in its own precision. error: Euclidean norm of the error of a head's
output, relative to attention in f64 over the same stored numbers, at one decode step."""


def write_json(path: Path, facts: dict, results: list[Timed]) -> None:
    text = json.dumps({**facts, "results": [timed.summary() for timed in results]}, indent=1)
    path.write_text(text + "\n")
