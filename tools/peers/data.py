"""Keys and values that all entries share, in each precision, in memory with 2 MiB pages."""

import math
import mmap
from dataclasses import dataclass

import numpy as np

HUGE = 2 << 20
SIZES = {"f32": 4, "f16": 2, "bf16": 2}
GIB = 1 << 30


@dataclass(frozen=True)
class Shape:
    """Dimensions of a layer at one decode step: batch 1, one query token."""

    query_heads: int
    kv_heads: int
    head_dim: int
    tokens: int

    def bytes(self, dtype: str) -> int:
        """Returns the bytes of keys and values of one layer."""
        return 2 * self.kv_heads * self.tokens * self.head_dim * SIZES[dtype]

    def layers(self, dtype: str, gib: float) -> int:
        """Returns the number of layers in `gib` GiB, at least two.

        One layer is read untimed before the others.
        """
        return max(2, math.ceil(gib * GIB / self.bytes(dtype)))


@dataclass(frozen=True)
class Layer:
    """Layer in f32: queries `[query_heads, head_dim]`, others `[kv_heads, tokens, head_dim]`."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray


def huge_array(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Allocates an array at a 2 MiB boundary and requests 2 MiB pages, as this library does."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, np.uint8)
    start = -data.ctypes.data % HUGE
    return data[start : start + size].view(dtype).reshape(shape)


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Rounds finite f32 to bf16, ties to even, and returns the bits in u16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def store(x: np.ndarray, dtype: str) -> np.ndarray:
    """Converts f32 elements to a precision; bf16 is stored as its bits in u16."""
    match dtype:
        case "f32":
            return x
        case "f16":
            return x.astype(np.float16)
        case _:
            return round_bf16(x)


def load(x: np.ndarray) -> np.ndarray:
    """Converts the result of `store` to f64."""
    return (widen_bf16(x) if x.dtype == np.uint16 else x).astype(np.float64)


def stored_layers(layer: Layer, dtype: str, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns `count` copies of a layer's keys and values, in the precision of `store`.

    Both have the shape `[kv_heads, tokens, head_dim]`.
    """

    def copies(x: np.ndarray) -> list[np.ndarray]:
        first = huge_array(
            x.shape, {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[dtype]
        )
        for head, numbers in enumerate(x):
            first[head] = store(numbers, dtype)
        arrays = [first]
        for _ in range(1, count):
            arrays.append(huge_array(first.shape, first.dtype))
            arrays[-1][...] = first
        return arrays

    return list(zip(copies(layer.keys), copies(layer.values)))


def exact(layer: Layer, dtype: str) -> np.ndarray:
    """Computes attention in f64 over the layer in a precision, `[query_heads, head_dim]`."""
    group = len(layer.queries) // len(layer.keys)
    outputs = []
    for head, (keys, values) in enumerate(zip(layer.keys, layer.values)):
        queries = layer.queries[head * group : (head + 1) * group].astype(np.float64)
        logits = queries @ load(store(keys, dtype)).T / math.sqrt(keys.shape[-1])
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        outputs.append(weights @ load(store(values, dtype)) / weights.sum(axis=-1, keepdims=True))
    return np.concatenate(outputs)


def relative_errors(out: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Returns the relative error of each query head's output in the Euclidean norm."""
    return np.linalg.norm(out - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
