"""Pipelines compared, verified and studied on a trace."""

from collections.abc import Iterator, Mapping, Sequence
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

_DEFAULTS: dict[str, dict[str, Any]] = {
    "tightness": {"trials": 200, "epsilon": 0.05, "delta": 0.2},
    "epsilon": {"trials": 20, "epsilons": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3], "delta": 0.1},
    "base-sample": {"trials": 10, "sizes": [64, 128, 256, 512, 1000, 2000, 4000]},
    "normality": {"trials": 200, "sizes": [4, 16, 64, 256, 1024]},
    "coverage": {"trials": 20, "share": 0.05, "mass": 0.9},
    "bias": {"trials": 100, "shares": [0.01, 0.02, 0.05, 0.1, 0.2]},
    "calibration": {"trials": 500, "deltas": [0.02, 0.05, 0.1, 0.2, 0.3, 0.5]},
    "sensitivity": {"backend": "cpu"},
    "pareto": {"backend": "cpu", "epsilon": 0.1, "delta": 0.1},
    "limit": {"backend": "cpu", "epsilon": 0.1, "delta": 0.1},
}
"""The parameters of each study, with the command's defaults."""

_OF_PIPELINES = ("calibration", "pareto", "limit")


def compare(
    pipelines: Sequence[Pipeline | _Path],
    trace: Trace | _Path,
    *,
    layers: Sequence[int] | None = None,
    queries: int | None = None,
    backend: str = "cpu",
    progress: bool = False,
) -> Result:
    """Compares pipelines with exact attention in f64 on a trace, as `vattention compare` does.

    Of each pipeline, `result["pipelines"]` has what it read (`density`), `recall`, errors of output, denominator and numerator (mean,
    p50, p95, max), error bars, and how its promise fared (`guarantee`); `pandas.json_normalize` makes a table of them.

    `layers` and `queries` (the last ones of each layer) choose a part of the trace; `progress` shows a bar, if tqdm is installed.

    Cost: one pass of exact attention over the trace, and one of each pipeline. Ctrl-C ends it.

    Raises ValueError if a pipeline or a setting does not fit the trace, OSError if the trace cannot be read.
    """
    with _bar(progress, "steps") as show:
        return _vattention.compare(
            [_pipeline(one) for one in pipelines],
            _trace(trace),
            layers=layers,
            queries=queries,
            backend=backend,
            progress=show,
        )


def verify(pipeline: Pipeline | _Path, trace: Trace | _Path, *, trials: int = 2000, progress: bool = False) -> Result:
    """Draws `trials` samples for each KV head of a trace and tells whether a pipeline keeps its promise, as `vattention verify` does.

    `result["held"]` is whether nothing contradicts it, `result["fault"]` where and why it fails, `result["heads"]` what each query head
    did; `pandas.DataFrame(result["heads"])` makes a table of these.

    Cost: the pipeline, `trials` times for each KV head, on all cores. Ctrl-C ends it.

    Raises ValueError if the pipeline promises nothing or does not fit the trace, OSError if the trace cannot be read.
    """
    with _bar(progress, "samples") as show:
        return _vattention.verify(_pipeline(pipeline), _trace(trace), trials=trials, progress=show)


def study(
    name: Study,
    trace: Trace | _Path,
    *,
    pipelines: Sequence[Pipeline | _Path] = (),
    layers: Sequence[int] | None = None,
    queries: int | None = None,
    progress: bool = False,
    **parameters: Any,
) -> Result:
    """Makes one of the paper's experiments on a trace, as `vattention study` does; docs/studies.md says what each is about.

    `parameters` are those of the command, with its defaults: `trials`, `epsilon`, `delta`, `epsilons`, `deltas`, `sizes`, `share`,
    `shares`, `mass`, `backend`, each where a study has it. `pipelines` are for calibration, pareto and limit.

    Raises ValueError for a study, a parameter or a pipeline that does not fit, OSError if the trace cannot be read.
    """
    if name not in _DEFAULTS:
        raise ValueError(f"study: no `{name}`; expected one of {', '.join(_DEFAULTS)}")
    if (name in _OF_PIPELINES) != bool(pipelines):
        expected = "at least one" if name in _OF_PIPELINES else "none"
        raise ValueError(f"pipelines: {len(pipelines)}; the study `{name}` expects {expected}")
    defaults = _DEFAULTS[name]
    if unknown := sorted(parameters.keys() - defaults.keys()):
        raise ValueError(f"{unknown[0]}: not of the study `{name}`; expected {', '.join(defaults)}")
    request: Mapping[str, Any] = {"study": name, **defaults, **parameters}
    with _bar(progress, "steps") as show:
        return _vattention.study(
            request,
            [_pipeline(one) for one in pipelines],
            _trace(trace),
            layers=layers,
            queries=queries,
            progress=show,
        )


def _pipeline(given: Pipeline | _Path) -> Pipeline:
    return given if isinstance(given, Pipeline) else Pipeline.load(fspath(given))


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
