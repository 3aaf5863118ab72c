"""Comparison, verification and study of pipelines on a trace."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, Literal

from vattention import _vattention
from vattention._types import Progress, Result
from vattention._vattention import Pipeline, Trace

_Path = str | PathLike[str]

Study = Literal[
    "tightness",
    "epsilon",
    "base-sample",
    "normality",
    "coverage",
    "bias",
    "calibration",
    "sensitivity",
    "pareto",
    "limit",
]

_WITH_PIPELINES = ("calibration", "pareto", "limit")
_WITH_BACKEND = ("sensitivity", "pareto", "limit")


def compare(
    pipelines: Sequence[Pipeline | _Path] | Pipeline | _Path,
    trace: Trace | _Path,
    *,
    layers: Sequence[int] | None = None,
    queries: int | None = None,
    backend: str = "cpu",
    progress: bool = False,
) -> Result:
    """Compares pipelines with exact attention in f64 on a trace, as `vattention compare` does.

    `pipelines` is one pipeline or a list; each is a `Pipeline`, the path of a file or the name of a
    built-in pipeline. `layers` restricts the comparison to some layers of the trace, and `queries`
    to the last queries of each layer. `progress=True` shows a progress bar if tqdm is installed.

    `result["pipelines"]` has a dict for each pipeline: the share of tokens read (`density`),
    `recall`, relative errors of output, denominator and numerator (mean, p50, p95, max), error
    bars, and the test of the promise (`guarantee`). `pandas.json_normalize` makes a table of them.

    Cost: one pass of exact attention over the trace, and one pass of each pipeline. Ctrl-C
    interrupts the call.

    Raises ValueError if a pipeline or a setting does not fit the trace, OSError if the trace cannot
    be read.
    """
    with _bar(progress, "steps") as show:
        return _vattention.compare(
            _pipelines(pipelines),
            _trace(trace),
            layers=layers,
            queries=queries,
            backend=backend,
            progress=show,
        )


def verify(
    pipeline: Pipeline | _Path, trace: Trace | _Path, *, trials: int = 2000, progress: bool = False
) -> Result:
    """Tests on a trace whether a pipeline keeps its promise, as `vattention verify` does.

    The pipeline runs `trials` times for each KV head, with independent samples.

    `result["verdict"]` is "held", "contradicted" or "undecided". "undecided" means that nothing
    contradicts the promise, but that a count of violations is improbable (`result["suspected_by"]`)
    or that some rows had too few samples for a verdict (`result["row_coverage"]`, whose
    `least_trials` would suffice for all rows). `result["fault"]` has the place and the cause of a
    failure. `result["heads"]` has a dict for each query head; `pandas.DataFrame(result["heads"])`
    makes a table of them.

    Cost: `trials` runs of the pipeline for each KV head, on all cores. Ctrl-C interrupts the call.

    Raises ValueError if the pipeline has no promise or does not fit the trace, OSError if the trace
    cannot be read.
    """
    with _bar(progress, "samples") as show:
        return _vattention.verify(_pipeline(pipeline), _trace(trace), trials=trials, progress=show)


def study(
    name: Study,
    trace: Trace | _Path,
    *,
    pipelines: Sequence[Pipeline | _Path] | Pipeline | _Path = (),
    layers: Sequence[int] | None = None,
    queries: int | None = None,
    backend: str | None = None,
    progress: bool = False,
    **options: Any,
) -> Result:
    """Runs one of the paper's experiments on a trace, as `vattention study` does.

    `options` are the options of this study in the command, with the same defaults: `trials`,
    `epsilon`, `delta`, `epsilons`, `deltas`, `sizes`, `share`, `shares`, `mass`. `pipelines` is
    required by the studies calibration, pareto and limit, and no other study takes it. `backend`,
    by default "cpu", is for sensitivity, pareto and limit. `layers`, `queries` and `progress` are
    those of `compare`.

    The result has the fields of the command's JSON; docs/results.md shows results.

    Raises ValueError for an unknown study, for an option that the study does not have, and for a
    pipeline that does not fit the trace; OSError if the trace cannot be read.
    """
    chosen = _pipelines(pipelines)
    if (name in _WITH_PIPELINES) != bool(chosen):
        expected = "at least one" if name in _WITH_PIPELINES else "none"
        raise ValueError(f"pipelines: the study `{name}` expects {expected}, got {len(chosen)}")
    if backend is not None and name not in _WITH_BACKEND:
        raise ValueError(f"backend: the study `{name}` takes no backend")
    with _bar(progress, "steps") as show:
        return _vattention.study(
            {"study": name, **options},
            chosen,
            _trace(trace),
            layers=layers,
            queries=queries,
            backend=backend or "cpu",
            progress=show,
        )


def _pipeline(given: Pipeline | _Path) -> Pipeline:
    return given if isinstance(given, Pipeline) else Pipeline.load(fspath(given))


def _pipelines(given: Iterable[Pipeline | _Path] | Pipeline | _Path) -> list[Pipeline]:
    """Converts a list or a single item to pipelines. A text is one item."""
    if isinstance(given, (Pipeline, str, PathLike)):
        return [_pipeline(given)]
    return [_pipeline(item) for item in given]


def _trace(given: Trace | _Path) -> Trace:
    return given if isinstance(given, Trace) else Trace(fspath(given))


@contextmanager
def _bar(wanted: bool, unit: str) -> Iterator[Progress]:
    """Yields a callback that updates a bar of tqdm; None if not `wanted` or without tqdm."""
    if not wanted:
        yield None
        return
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        yield None
        return
    with tqdm(unit=unit) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
