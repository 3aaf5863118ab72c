"""The same keys and values for all, in each precision, in memory with 2 MiB pages."""

import math
import mmap
from dataclasses import dataclass

import numpy as np

HUGE = 2 << 20
SIZES = {"f32": 4, "f16": 2, "bf16": 2}
GIB = 1 << 30


@dataclass(frozen=True)
class Shape:
    """One layer at one decode step: batch 1, one query token."""

    query_heads: int
    kv_heads: int
    head_dim: int
    tokens: int

    def bytes(self, dtype: str) -> int:
        """Keys and values of one layer."""
        return 2 * self.kv_heads * self.tokens * self.head_dim * SIZES[dtype]

    def layers(self, dtype: str, gib: float) -> int:
        """As many as hold `gib` GiB, and at least two: one is read untimed before the others."""
        return max(2, math.ceil(gib * GIB / self.bytes(dtype)))


@dataclass(frozen=True)
class Layer:
    """f32 elements: queries [query_heads, head_dim], keys and values [kv_heads, tokens, head_dim]."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray


def huge_array(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An array in memory that starts at a 2 MiB boundary and asks for 2 MiB pages, as ours does."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, np.uint8)
    start = -data.ctypes.data % HUGE
    return data[start : start + size].view(dtype).reshape(shape)


def round_bf16(x: np.ndarray) -> np.ndarray:
    """The bits of the nearest bf16, ties to even, in u16; of finite f32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def store(x: np.ndarray, dtype: str) -> np.ndarray:
    """f32 elements in a precision; bf16 is kept as its bits in u16. Same shape."""
    match dtype:
        case "f32":
            return x
        case "f16":
            return x.astype(np.float16)
        case _:
            return round_bf16(x)


def load(x: np.ndarray) -> np.ndarray:
    """What `store` keeps, in f64."""
    return (widen_bf16(x) if x.dtype == np.uint16 else x).astype(np.float64)


def stored_layers(layer: Layer, dtype: str, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """`count` copies of a layer's keys and values [kv_heads, tokens, head_dim] as `store` keeps them."""

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
    """Attention in f64 over the layer as a precision keeps it: [query_heads, head_dim]."""
    group = len(layer.queries) // len(layer.keys)
    outputs = []
    for head, (keys, values) in enumerate(zip(layer.keys, layer.values)):
        queries = layer.queries[head * group : (head + 1) * group].astype(np.float64)
        logits = queries @ load(store(keys, dtype)).T / math.sqrt(keys.shape[-1])
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        outputs.append(weights @ load(store(values, dtype)) / weights.sum(axis=-1, keepdims=True))
    return np.concatenate(outputs)


def relative_errors(out: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Of each query head's output, in the Euclidean norm: [query_heads]."""
    return np.linalg.norm(out - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
