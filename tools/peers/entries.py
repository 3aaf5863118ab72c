"""Entries of the benchmark: implementations of one decode step of attention."""

import ctypes
import importlib
import math
from ctypes import c_char_p, c_int, c_void_p
from types import ModuleType

import numpy as np

from . import install
from .data import GIB, Layer, Shape, huge_array

Stored = list[tuple[np.ndarray, np.ndarray]]
"""Keys and values of each layer, `[kv_heads, tokens, head_dim]`, in the precision of data.store."""


class LeftOut(Exception):
    """Error: an entry cannot be timed here; the message has the reason and the remedy."""


class Entry:
    """Implementation of attention over the layers of one cache."""

    attends = True

    def __init__(self, name: str, dtype: str, layers: int) -> None:
        self.name, self.dtype, self.layers = name, dtype, layers

    def call(self, layer: int) -> None:
        """Attends to one layer; the benchmark times this method."""
        raise NotImplementedError

    def output(self) -> np.ndarray:
        """Returns the output of the last call, `[query_heads, head_dim]` in f32."""
        raise NotImplementedError

    def density(self) -> float:
        """Returns the share of distinct rows per KV head that the last call read."""
        return 1.0

    def close(self) -> None:
        """Frees the resources of the entry."""


def import_torch() -> ModuleType:
    try:
        return importlib.import_module("torch")
    except (ImportError, OSError, ValueError) as error:
        raise LeftOut(f"torch cannot be imported ({error}); {install.HOW}")


class Torch(Entry):
    """PyTorch: its fused attention (`sdpa`), or explicit products for grouped heads (`matmul`)."""

    def __init__(
        self, form: str, dtype: str, shape: Shape, layer: Layer, stored: Stored, threads: int
    ) -> None:
        super().__init__(f"torch {form}", dtype, len(stored))
        torch = self.torch = import_torch()
        torch.set_num_threads(threads)
        self.scale = 1 / math.sqrt(shape.head_dim)
        self.tensors = [(self._tensor(keys), self._tensor(values)) for keys, values in stored]
        kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        grouped = (shape.kv_heads, shape.query_heads // shape.kv_heads, shape.head_dim)
        single = (1, shape.query_heads, 1, shape.head_dim)
        queries = torch.from_numpy(layer.queries).to(kinds[dtype])
        self.queries = queries.reshape(single if form == "sdpa" else grouped)
        self.attend = self._sdpa if form == "sdpa" else self._matmul
        self.out = self.queries

    def _tensor(self, array: np.ndarray) -> object:
        """Returns a tensor that shares the memory of the array."""
        if array.dtype == np.uint16:
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def _sdpa(self, keys: object, values: object) -> object:
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return attention(self.queries, keys[None], values[None], enable_gqa=True)

    def _matmul(self, keys: object, values: object) -> object:
        logits = self.queries @ keys.transpose(1, 2)
        return self.torch.softmax(logits.mul_(self.scale), dim=-1) @ values

    def call(self, layer: int) -> None:
        with self.torch.inference_mode():
            self.out = self.attend(*self.tensors[layer])

    def output(self) -> np.ndarray:
        return self.out.float().reshape(-1, self.out.shape[-1]).numpy()


class Ggml(Entry):
    """llama.cpp: ggml's flash attention on the CPU (peers/ggml_decode.c)."""

    def __init__(
        self, dtype: str, shape: Shape, layer: Layer, stored: Stored, threads: int
    ) -> None:
        super().__init__("llama.cpp flash_attn_ext", dtype, len(stored))
        self.library = load_ggml()
        pointers = c_void_p * len(stored)
        keys, values = (pointers(*(pair[i].ctypes.data for pair in stored)) for i in (0, 1))
        sizes = (
            len(stored),
            shape.tokens,
            shape.query_heads,
            shape.kv_heads,
            shape.head_dim,
            threads,
        )
        self.stored = stored  # The handle only points to these arrays, so they must outlive it.
        self.queries = np.ascontiguousarray(layer.queries)
        self.out = np.zeros_like(self.queries)
        self.handle = self.library.ggml_decode_new(dtype.encode(), *sizes, keys, values)
        if not self.handle:
            raise LeftOut("ggml: out of memory")

    def call(self, layer: int) -> None:
        arrays = self.queries.ctypes.data, self.out.ctypes.data
        status = self.library.ggml_decode_attend(self.handle, layer, *arrays)
        if status != 0:
            raise LeftOut(f"ggml: status {status}")

    def output(self) -> np.ndarray:
        return self.out

    def close(self) -> None:
        self.library.ggml_decode_free(self.handle)
        self.handle = None


def load_ggml() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(install.GGML_LIBRARY))
    except OSError as error:
        raise LeftOut(f"llama.cpp's ggml cannot be loaded ({error}); {install.HOW}")
    library.ggml_decode_new.restype = c_void_p
    library.ggml_decode_new.argtypes = [c_char_p, *[c_int] * 6, c_void_p, c_void_p]
    library.ggml_decode_attend.restype = c_int
    library.ggml_decode_attend.argtypes = [c_void_p, c_int, c_void_p, c_void_p]
    library.ggml_decode_free.restype = None
    library.ggml_decode_free.argtypes = [c_void_p]
    library.ggml_decode_version.restype = c_char_p
    return library


class Sequential(Entry):
    """Sequential read of memory, which bounds the speed of all entries: torch's dot product.

    The dot product reads two vectors, as attention reads keys and values, and is faster than
    torch's sum of one vector.
    """

    attends = False
    label = "sequential read (torch dot)"
    bytes = GIB // 2

    def __init__(self, threads: int) -> None:
        super().__init__(self.label, "f32", 2)
        self.torch = import_torch()
        self.torch.set_num_threads(threads)
        shape = (2, self.bytes // 8)
        self.tensors = [
            self.torch.from_numpy(huge_array(shape, np.float32)).fill_(1.0) for _ in range(2)
        ]

    def call(self, layer: int) -> None:
        self.torch.dot(*self.tensors[layer])
