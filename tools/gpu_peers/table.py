"""The results as a markdown table, and as JSON."""

import json
from pathlib import Path

from .goals import HALF, TENTH, Judge
from .shape import Shape

LEGEND = """
Median times of kernels started as one graph, 256 MB written before each. E: the time that the bytes take at
the rate of a copy, over the time measured. ratio: theirs over ours. select scores all codes, takes the best
5 % for each query head and lists them; top-k has its scores ready. A step is select + gather, one after the
other: the kernels, without the sample's statistics and what the host does."""


def markdown(judge: Judge, shapes: list[Shape]) -> str:
    """One table of our entries, each beside the best of the others."""
    lines = [row(["shape", "ours", "rows", "us", "E", "best peer", "us", "ratio"]), row(["---", "---", *["--:"] * 3, "---", "--:", "--:"])]
    for shape in shapes:
        lines += [row(cells) for cells in of_shape(judge, shape)]
    return "\n".join(lines)


def of_shape(judge: Judge, shape: Shape) -> list[list[str]]:
    own = judge.ours.get
    lines = [line(judge, shape, "dense", 1.0, own("dense", shape, 1.0), judge.peers.best("dense", shape, 1.0))]
    for share in (TENTH, HALF):
        lines.append(line(judge, shape, "gather", share, own("gather", shape, share), judge.peers.best("gather", shape, share)))
    lines.append(line(judge, shape, "select", HALF, own("select", shape, HALF), judge.peers.best("top-k", shape, HALF)))
    for what in ("dense", "naive"):
        for share in (TENTH, HALF):
            seconds, fastest = judge.seconds_of_step(shape, share), judge.fastest(what, shape, share)
            lines.append([str(shape), "step", f"{share:.0%}", micro(seconds), "", *beside(seconds, fastest)])
    return lines


def line(judge: Judge, shape: Shape, what: str, share: float, ours, peer) -> list[str]:
    rate = judge.copy_rate()
    efficiency = f"{ours.bytes / rate / ours.seconds:.2f}" if ours and rate and not judge.ours.emulated else ""
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


def missing(judge: Judge) -> str:
    """Whatever is not in the table, and why; the same of several shapes once."""
    said: dict[tuple[str, str], list[str]] = {}
    for failure in judge.peers.failures:
        place = f"{failure.shape} {failure.share:.0%}"
        said.setdefault((f"{failure.name} ({failure.what})", failure.reason), []).append(place)
    for shape, reason in judge.ours.left_out.items():
        said.setdefault(("gather", reason), []).append(str(shape))
    return "\n".join(f"left out: {name}: {reason} [{', '.join(places)}]" for (name, reason), places in said.items())


def write_json(path: Path, judge: Judge) -> None:
    peers = judge.peers
    document = {
        "device": peers.device,
        "versions": peers.versions,
        "copy_rate": {"gather": judge.ours.copy_rate, "torch": peers.copy_rate},
        "gather_on": judge.ours.device,
        "results": [result.summary() for result in peers.results],
        "left_out": [failure.summary() for failure in peers.failures],
        "goals": [goal.summary() for goal in judge.goals()],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
