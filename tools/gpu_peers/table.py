"""Output of the results as a Markdown table and JSON."""

import json
from pathlib import Path

from .goals import TENTH, TWENTIETH, Comparison
from .peers import Failure, Peers, Result
from .shape import Shape

LEGEND = """
Times are medians of kernels started as one graph; 256 MB are written before each. E: the time of
the bytes at the rate of a copy, divided by the measured time. ratio: time of the peer divided by
ours. select scores all codes and lists the best 5 % for each query head; top-k starts from scores.
step: select and gather in sequence, without the statistics of the sample and the work of the
host."""


def markdown(comparison: Comparison, shapes: list[Shape]) -> str:
    """Formats a table of this library's kernels beside the fastest peers."""
    lines = [row(["shape", "ours", "rows", "us", "E", "best peer", "us", "ratio"])]
    lines.append(row(["---", "---", *["--:"] * 3, "---", "--:", "--:"]))
    for shape in shapes:
        lines += [row(cells) for cells in shape_rows(comparison, shape)]
    return "\n".join(lines)


def shape_rows(comparison: Comparison, shape: Shape) -> list[list[str]]:
    kernels = [
        ("dense", "dense", 1.0),
        ("gather", "gather", TENTH),
        ("gather", "gather", TWENTIETH),
        ("select", "top-k", TWENTIETH),
    ]
    lines = [line(comparison, shape, *kernel) for kernel in kernels]
    for what in ("dense", "naive"):
        for share in (TENTH, TWENTIETH):
            seconds, fastest = (
                comparison.seconds_of_step(shape, share),
                comparison.fastest(what, shape, share),
            )
            lines.append(
                [str(shape), "step", f"{share:.0%}", micro(seconds), "", *beside(seconds, fastest)]
            )
    return lines


def line(comparison: Comparison, shape: Shape, what: str, theirs: str, share: float) -> list[str]:
    """Formats a kernel of this library beside the fastest peer of the operation `theirs`."""
    ours, peer, rate = (
        comparison.ours.get(what, shape, share),
        comparison.peers.best(theirs, shape, share),
        comparison.copy_rate(),
    )
    efficiency = (
        f"{ours.bytes / rate / ours.seconds:.2f}"
        if ours and rate and not comparison.ours.emulated
        else ""
    )
    seconds = ours.seconds if ours else None
    fastest = (peer.name, peer.seconds) if peer else None
    return [str(shape), what, f"{share:.0%}", micro(seconds), efficiency, *beside(seconds, fastest)]


def beside(seconds: float | None, fastest: tuple[str, float] | None) -> list[str]:
    name, theirs = fastest or ("none", None)
    return [name, micro(theirs), f"{theirs / seconds:.2f}" if seconds and theirs else ""]


def micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.1f}"


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def left_out(comparison: Comparison) -> list[str]:
    """Formats lines of the entries that could not be timed, with the reasons."""
    ours = [("gather", reason, str(shape)) for shape, reason in comparison.ours.left_out.items()]
    return grouped(
        "left out",
        [*ours, *(named(failure, failure.reason) for failure in comparison.peers.failures)],
    )


def without_graph(peers: Peers) -> list[str]:
    """Formats lines of the entries timed without a CUDA graph, for which the host may be slow."""
    found = [named(result, result.no_graph) for result in peers.results if result.no_graph]
    return grouped("timed without a graph", found) if peers.on_gpu else []


def named(entry: Result | Failure, reason: str) -> tuple[str, str, str]:
    return f"{entry.name} ({entry.what})", reason, f"{entry.shape} {entry.share:.0%}"


def grouped(title: str, found: list[tuple[str, str, str]]) -> list[str]:
    """Formats a line for each name and reason, with all shapes."""
    places: dict[tuple[str, str], list[str]] = {}
    for name, reason, place in found:
        places.setdefault((name, reason), []).append(place)
    return [
        f"{title}: {name}: {reason} [{', '.join(where)}]"
        for (name, reason), where in places.items()
    ]


def write_json(path: Path, comparison: Comparison) -> None:
    peers = comparison.peers
    document = {
        "device": peers.device,
        "versions": peers.versions,
        "copy_rate": {"gather": comparison.ours.copy_rate, "torch": peers.copy_rate},
        "gather_on": comparison.ours.device,
        "results": [result.summary() for result in peers.results],
        "left_out": [failure.summary() for failure in peers.failures],
        "goals": [goal.summary() for goal in comparison.goals()],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
