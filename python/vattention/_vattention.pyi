"""Types of the extension module; its docstrings are in the module itself."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from vattention._types import (
    LayerLayout,
    Problem,
    Progress,
    Promise,
    RowReport,
    Summary,
    TraceLayer,
)

_Path: TypeAlias = str | PathLike[str]
_Array: TypeAlias = Any
_Pool: TypeAlias = _Array | tuple[_Array, _Array]
_Integers: TypeAlias = Sequence[Any] | _Array
_Storage: TypeAlias = Literal["f32", "f16", "bf16", "q8"]
_TraceStorage: TypeAlias = Literal["f32", "f16", "bf16"]

__all__ = [
    "Attention",
    "Output",
    "PagedAttention",
    "Pipeline",
    "PipelineError",
    "VERSION",
    "Trace",
    "append_batch",
    "attend_batch",
    "broken_law",
    "compare",
    "files_of",
    "panic_for_test",
    "register_selector",
    "run_command",
    "study",
    "verify",
    "write_trace",
]

VERSION: Final[str]

class PipelineError(ValueError):
    problems: list[Problem]

@final
class Pipeline:
    @staticmethod
    def load(path: _Path, *set: str) -> Pipeline: ...
    @staticmethod
    def names() -> list[str]: ...
    @staticmethod
    def parse(text: str, *set: str, name: str = "pipeline") -> Pipeline: ...
    def set(self, *changes: str) -> Pipeline: ...
    def check(
        self,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        layer: int = 0,
        backend: str = "cpu",
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def is_dense(self) -> bool: ...
    @property
    def promise(self) -> Promise | None: ...
    def to_toml(self) -> str: ...
    def __copy__(self) -> Pipeline: ...
    def __deepcopy__(self, _memo: Any) -> Pipeline: ...

@final
class Output:
    @property
    def out(self) -> NDArray[np.float32]: ...
    @property
    def log_denominator(self) -> NDArray[np.float32]: ...
    @property
    def rows(self) -> list[RowReport]: ...
    @property
    def selection(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.float32]] | None: ...
    def summary(self) -> Summary: ...

@final
class Attention:
    def __new__(
        cls,
        pipeline: Pipeline,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        layer: int = 0,
        sequence: int = 0,
        scale: float | None = None,
        storage: _Storage = "f32",
        threads: int | None = None,
        backend: str = "cpu",
        fall_back: Literal["never", "by-count", "by-clock"] = "by-count",
        return_selection: bool = False,
        omit_error_bars: bool = False,
        free_evicted: bool = False,
        check: bool = False,
        soft_cap: float | None = None,
        sink_logits: Sequence[float] | _Array | None = None,
    ) -> Attention: ...
    def append(
        self, keys: _Array, values: _Array, classes: Sequence[int] | _Array | None = None
    ) -> None: ...
    def observe(self, queries: _Array) -> None: ...
    def attend(self, queries: _Array, visible: Sequence[int] | None = None) -> Output: ...
    def truncate(self, tokens: int) -> None: ...
    def fork(self, sequence: int | None = None) -> Attention: ...
    def __len__(self) -> int: ...
    def __copy__(self) -> Attention: ...
    def __deepcopy__(self, _memo: Any) -> Attention: ...
    def __reduce__(self) -> Any: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...

def append_batch(
    attentions: Sequence[Attention],
    keys: _Array,
    values: _Array,
    classes: Sequence[Sequence[int] | _Array] | None = None,
) -> None: ...
def attend_batch(
    attentions: Sequence[Attention],
    queries: _Array,
    visible: Sequence[Sequence[int]] | None = None,
    *,
    threads: int | None = None,
) -> list[Output]: ...

@final
class PagedAttention:
    def __new__(
        cls,
        pipeline: Pipeline,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        layer: int = 0,
        scale: float | None = None,
        threads: int | None = None,
        fall_back: Literal["never", "by-count", "by-clock"] = "by-count",
        omit_error_bars: bool = False,
        soft_cap: float | None = None,
        sink_logits: Sequence[float] | _Array | None = None,
        share_index: bool = False,
    ) -> PagedAttention: ...
    def write(self, keys: _Array, values: _Array, pool: _Pool, slot_mapping: _Integers) -> None: ...
    def append(
        self,
        sequences: _Integers,
        pool: _Pool,
        block_tables: _Integers,
        lengths: _Integers,
        classes: Sequence[Sequence[int] | _Array] | None = None,
    ) -> None: ...
    def observe(
        self, sequence: int, queries: _Array, pool: _Pool, block_table: _Integers, length: int
    ) -> None: ...
    def attend(
        self,
        sequences: _Integers,
        queries: _Array,
        pool: _Pool,
        block_tables: _Integers,
        lengths: _Integers,
    ) -> Output: ...
    def fork(self, sequence: int, new: int) -> None: ...
    def truncate(
        self, sequences: _Integers, pool: _Pool, block_tables: _Integers, lengths: _Integers
    ) -> None: ...
    def free(self, sequence: int) -> None: ...
    @property
    def lengths(self) -> dict[int, int]: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def needs_classes(self) -> bool: ...
    @property
    def needs_observe(self) -> bool: ...
    @property
    def can_truncate(self) -> bool: ...

@final
class Trace:
    def __new__(cls, path: _Path) -> Trace: ...
    @property
    def path(self) -> str: ...
    @property
    def scale(self) -> float | None: ...
    @property
    def model(self) -> str | None: ...
    @property
    def source(self) -> str | None: ...
    @property
    def layers(self) -> dict[int, LayerLayout]: ...
    def layer(self, number: int) -> TraceLayer: ...

def write_trace(
    path: _Path,
    layers: Mapping[int, Mapping[str, Any]],
    *,
    storage: _TraceStorage = "f16",
    scale: float | None = None,
    model: str | None = None,
    source: str | None = None,
) -> None: ...
def compare(
    pipelines: Sequence[Pipeline],
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    queries: int | None = None,
    backend: str = "cpu",
    progress: Progress = None,
) -> dict[str, Any]: ...
def verify(
    pipeline: Pipeline, trace: Trace, *, trials: int = 2000, progress: Progress = None
) -> dict[str, Any]: ...
def study(
    request: Mapping[str, Any],
    pipelines: Sequence[Pipeline],
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    queries: int | None = None,
    backend: str = "cpu",
    progress: Progress = None,
) -> dict[str, Any]: ...
def register_selector(name: str, class_: Callable[..., Any], /) -> None: ...
def broken_law(pipeline: Pipeline, selector: int, cases: int) -> tuple[str, str] | None: ...
def files_of(path: _Path) -> list[Path]: ...
def run_command(args: Sequence[str]) -> int: ...
def panic_for_test(message: str) -> None: ...
