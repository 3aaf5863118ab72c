"""The results as a markdown table, and as JSON."""

import json
from pathlib import Path

from .goals import TENTH, TWENTIETH, Comparison
from .peers import Failure, Peers, Result
from .shape import Shape

LEGEND = """
Median times of kernels started as one graph, 256 MB written before each. E: the time that the bytes take at
the rate of a copy, over the time measured. ratio: theirs over ours. select scores all codes, takes the best
5 % for each query head and lists them; top-k has its scores ready. A step is select + gather, one after the
other: the kernels, without the sample's statistics and what the host does."""


def markdown(comparison: Comparison, shapes: list[Shape]) -> str:
    """One table of our entries, each beside the best of the others."""
    lines = [row(["shape", "ours", "rows", "us", "E", "best peer", "us", "ratio"])]
    lines.append(row(["---", "---", *["--:"] * 3, "---", "--:", "--:"]))
    for shape in shapes:
        lines += [row(cells) for cells in of_shape(comparison, shape)]
    return "\n".join(lines)


def of_shape(comparison: Comparison, shape: Shape) -> list[list[str]]:
    alone = [("dense", "dense", 1.0), ("gather", "gather", TENTH), ("gather", "gather", TWENTIETH)]
    lines = [line(comparison, shape, *one) for one in [*alone, ("select", "top-k", TWENTIETH)]]
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
    """Ours beside the fastest of those that do `theirs`."""
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
    """Whatever could not be timed, and why."""
    ours = [("gather", reason, str(shape)) for shape, reason in comparison.ours.left_out.items()]
    return grouped(
        "left out",
        [*ours, *(named(failure, failure.reason) for failure in comparison.peers.failures)],
    )


def without_graph(peers: Peers) -> list[str]:
    """What was started call by call, so that the host may have been too slow for it."""
    found = [named(result, result.no_graph) for result in peers.results if result.no_graph]
    return grouped("timed without a graph", found) if peers.on_gpu else []


def named(one: Result | Failure, reason: str) -> tuple[str, str, str]:
    return f"{one.name} ({one.what})", reason, f"{one.shape} {one.share:.0%}"


def grouped(said: str, found: list[tuple[str, str, str]]) -> list[str]:
    """A line for each name and reason, with all places."""
    places: dict[tuple[str, str], list[str]] = {}
    for name, reason, place in found:
        places.setdefault((name, reason), []).append(place)
    return [
        f"{said}: {name}: {reason} [{', '.join(where)}]" for (name, reason), where in places.items()
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
