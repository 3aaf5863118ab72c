"""Pipelines compared, verified and studied on a trace."""

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

_OF_PIPELINES = ("calibration", "pareto", "limit")
_OF_BACKENDS = ("sensitivity", "pareto", "limit")


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

    `pipelines` are pipelines, paths of files or names of built-in pipelines: a list, or one.

    Of each pipeline, `result["pipelines"]` has what it read (`density`), `recall`, errors of output, denominator and numerator (mean,
    p50, p95, max), error bars, and how its promise fared (`guarantee`); `pandas.json_normalize` makes a table of them.

    `layers` and `queries` (the last ones of each layer) choose a part of the trace; `progress` shows a bar, if tqdm is installed.

    Cost: one pass of exact attention over the trace, and one of each pipeline. Ctrl-C ends it.

    Raises ValueError if a pipeline or a setting does not fit the trace, OSError if the trace cannot be read.
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
    """Draws `trials` samples for each KV head of a trace and tells whether a pipeline keeps its promise, as `vattention verify` does.

    `result["verdict"]` is "held", "contradicted" or "undecided": nothing contradicts the promise, but a count is improbable
    (`result["suspected_by"]`), or some rows have too few samples to be judged (`result["row_coverage"]`, which has the `least_trials`
    that judge all). `result["fault"]` is where and why it fails,
    `result["heads"]` what each query head did; `pandas.DataFrame(result["heads"])` makes a table of these.

    Cost: the pipeline, `trials` times for each KV head, on all cores. Ctrl-C ends it.

    Raises ValueError if the pipeline promises nothing or does not fit the trace, OSError if the trace cannot be read.
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
    """Makes one of the paper's experiments on a trace, as `vattention study` does; docs/results.md shows results.

    `options` are those of the command, with its defaults: `trials`, `epsilon`, `delta`, `epsilons`, `deltas`, `sizes`, `share`,
    `shares`, `mass`, each where a study has it. `pipelines` are for calibration, pareto and limit; `backend`, by default "cpu", for
    sensitivity, pareto and limit.

    Raises ValueError for a study, an option or a pipeline that does not fit, OSError if the trace cannot be read.
    """
    chosen = _pipelines(pipelines)
    if (name in _OF_PIPELINES) != bool(chosen):
        expected = "at least one" if name in _OF_PIPELINES else "none"
        raise ValueError(f"pipelines: {len(chosen)}; the study `{name}` expects {expected}")
    if backend is not None and name not in _OF_BACKENDS:
        raise ValueError(f"backend: the study `{name}` has none")
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
    return [_pipeline(one) for one in given]


def _trace(given: Trace | _Path) -> Trace:
    return given if isinstance(given, Trace) else Trace(fspath(given))


@contextmanager
def _bar(wanted: bool, unit: str) -> Iterator[Progress]:
    """What shows progress by a bar of tqdm, if that is wanted and installed."""
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
