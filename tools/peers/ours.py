"""Access to this library through its C interface (benches/peers)."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import install
from .data import Layer, Shape, round_bf16, widen_bf16
from .entries import Entry, LeftOut


@dataclass(frozen=True)
class Pipeline:
    """Pipeline file, changes of its settings, and the precision of stored rows."""

    path: Path
    settings: tuple[str, ...]
    dtype: str

    @property
    def name(self) -> str:
        return self.path.stem


class Library:
    """The shared library."""

    def __init__(self, path: Path = install.OURS_LIBRARY) -> None:
        size = c_size_t
        self.functions = ctypes.CDLL(str(path))
        self._declare(
            "create", c_void_p, c_char_p, c_char_p, c_char_p, size, size, size, size, size
        )
        self._declare("append", c_int, c_void_p, size, c_void_p, c_void_p, size)
        self._declare("attend", c_int, c_void_p, size, c_void_p, c_void_p, POINTER(c_double))
        self._declare("free", None, c_void_p)
        self._declare("synth", c_int, c_char_p, size, size, size, size, c_uint64, *[c_void_p] * 3)
        self._declare("error", None, c_char_p, size)

    def _declare(self, name: str, result: type | None, *arguments: type) -> None:
        function = getattr(self.functions, f"vattention_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)

    def reason(self) -> str:
        """Returns the reason of the last failure."""
        text = ctypes.create_string_buffer(4096)
        self.error(text, len(text))
        return text.value.decode(errors="replace")

    def check(self, status: int) -> None:
        if status != 0:
            raise LeftOut(self.reason())

    def synthetic(self, kind: str, shape: Shape, seed: int) -> Layer:
        """Makes synthetic heads, whose queries are rounded to bf16, so that all entries agree."""
        queries = np.zeros((shape.query_heads, shape.head_dim), np.float32)
        keys = np.zeros((shape.kv_heads, shape.tokens, shape.head_dim), np.float32)
        values = np.zeros_like(keys)
        dimensions = (shape.tokens, shape.query_heads, shape.kv_heads, shape.head_dim)
        self.check(
            self.synth(kind.encode(), *dimensions, seed, *map(address, (queries, keys, values)))
        )
        return Layer(widen_bf16(round_bf16(queries)), keys, values)


class Ours(Entry):
    """Entry of a pipeline on the `cpu` backend, which has its own copy of keys and values."""

    def __init__(
        self,
        library: Library,
        pipeline: Pipeline,
        shape: Shape,
        layer: Layer,
        layers: int,
        threads: int,
    ) -> None:
        super().__init__(f"vattention {pipeline.name}", pipeline.dtype, layers)
        self.library, self.read = library, c_double(1.0)
        self.queries = np.ascontiguousarray(layer.queries)
        self.out = np.zeros_like(self.queries)
        texts = [str(pipeline.path), "\n".join(pipeline.settings), pipeline.dtype]
        dimensions = (layers, shape.query_heads, shape.kv_heads, shape.head_dim)
        self.handle = library.create(*(text.encode() for text in texts), *dimensions, threads)
        if not self.handle:
            raise LeftOut(library.reason())
        arrays = address(layer.keys), address(layer.values)
        try:
            for i in range(layers):
                library.check(library.append(self.handle, i, *arrays, shape.tokens))
        except LeftOut:
            self.close()
            raise
        self.pointers = address(self.queries), address(self.out), byref(self.read)

    def call(self, layer: int) -> None:
        self.library.check(self.library.attend(self.handle, layer, *self.pointers))

    def output(self) -> np.ndarray:
        return self.out

    def density(self) -> float:
        return self.read.value

    def close(self) -> None:
        self.library.free(self.handle)
        self.handle = None


def address(array: np.ndarray) -> int:
    """Returns the address of a contiguous array."""
    if not array.flags.c_contiguous:
        raise ValueError("expected a contiguous array")
    return array.ctypes.data
