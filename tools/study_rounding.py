#!/usr/bin/env python3
"""Study of roundings of keys and values to 8 and 4 bits, with outlier channels.

    python3 tools/study_rounding.py data/smollm2.safetensors

Each line has the error of the attention output relative to unrounded rows: the mean and the 95 %
quantile over all query heads, queries and layers of the trace. A bias is a constant that is added
to channels of the keys, as models with biases of keys do; it is given in root mean squares of the
keys. `steady` adds it to the channel that rotates slowest, where it does not change attention,
because all logits change equally. `rotating` adds it before the rotation to the channels that
rotate fastest, and the queries are zero there, so that attention does not change either.
"""

import argparse
import json
import pathlib
import struct

import numpy as np

TYPES = {"F16": np.float16, "F32": np.float32, "I64": np.int64}


def read_trace(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the tensors of a trace in f32 or f16."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, tensor in header.items():
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        numbers = np.frombuffer(data[begin:end], TYPES[tensor["dtype"]])
        tensors[name] = numbers.reshape(tensor["shape"])
    return tensors


def round_rows(rows: np.ndarray, largest: int) -> np.ndarray:
    """Rounds each row to integers up to `largest`, with a scale of the row."""
    scale = np.abs(rows).max(-1, keepdims=True) / largest
    scale[scale == 0] = 1
    return np.round(rows / scale) * scale


def round_parts(rows: np.ndarray, largest: int) -> np.ndarray:
    """Rounds each row with a scale for every 32 elements."""
    parts = rows.reshape(len(rows), -1, 32)
    return round_rows(parts, largest).reshape(rows.shape)


def round_centred(rows: np.ndarray, largest: int) -> np.ndarray:
    """Rounds the differences from the mean of each channel over the first 256 tokens."""
    centre = rows[:256].mean(0)
    return round_rows(rows - centre, largest) + centre


def hadamard(dim: int) -> np.ndarray:
    """Orthogonal Hadamard matrix with random signs; `dim` is a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], dim)
    return matrix * signs / np.sqrt(dim)


def round_rotated(rows: np.ndarray, largest: int) -> np.ndarray:
    """Rounds the rows after an orthogonal transform, and transforms them back."""
    matrix = hadamard(rows.shape[1])
    return round_rows(rows @ matrix.T, largest) @ matrix


# Roundings of keys and of values.
ROUNDINGS = {
    "scale per row": (round_rows, round_rows),
    "scale per 32": (round_parts, round_parts),
    "centred keys": (round_centred, round_rows),
    "Hadamard": (round_rotated, round_rotated),
}


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention output of one query, which is multiplied by the scale."""
    logits = keys @ query
    weights = np.exp(logits - logits.max())
    return weights @ values / weights.sum()


def add_steady(queries: np.ndarray, keys: np.ndarray, bias: float):
    """Adds the bias to the last channel of the first half, which rotates slowest."""
    keys = keys.copy()
    keys[..., keys.shape[-1] // 2 - 1] += bias
    return queries, keys


def add_rotating(queries: np.ndarray, keys: np.ndarray, bias: float):
    """Adds the bias to the pair of channels that rotates by one radian per token."""
    pair = [0, keys.shape[-1] // 2]
    queries, keys = queries.copy(), keys.copy()
    queries[..., pair] = 0
    angles = np.arange(keys.shape[1])
    keys[..., pair] += bias * np.stack([np.cos(angles), np.sin(angles)], -1)
    return queries, keys


def measure_errors(layer: tuple[np.ndarray, ...], roundings, largest: int) -> list[float]:
    """Relative output errors of all rows of a layer."""
    queries, keys, values, visible = layer
    round_keys, round_values = roundings
    group = len(queries) // len(keys)
    errors = []
    for head, (k, v) in enumerate(zip(keys, values)):
        stored_k, stored_v = round_keys(k, largest), round_values(v, largest)
        for query_head in queries[head * group : (head + 1) * group]:
            for query, n in zip(query_head, visible):
                exact = attend(query, k[:n], v[:n])
                output = attend(query, stored_k[:n], stored_v[:n])
                errors.append(np.linalg.norm(output - exact) / np.linalg.norm(exact))
    return errors


def read_layers(path: pathlib.Path) -> list[tuple[np.ndarray, ...]]:
    """Queries multiplied by the scale, keys, values and visible tokens of each layer."""
    tensors = read_trace(path)
    layers = []
    for name in sorted(name for name in tensors if name.endswith(".keys")):
        prefix = name.removesuffix("keys")
        queries, keys, values = (
            tensors[prefix + part].astype(np.float64) for part in ("queries", "keys", "values")
        )
        queries /= np.sqrt(queries.shape[-1])
        visible = tensors.get(prefix + "visible", np.full(queries.shape[1], keys.shape[1]))
        layers.append((queries, keys, values, visible))
    return layers


def main() -> None:
    """Prints a table for each number of bits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=pathlib.Path)
    arguments = parser.parse_args()
    layers = read_layers(arguments.trace)
    biases = [("none", 0, add_steady)]
    biases += [("steady", factor, add_steady) for factor in (10, 30, 100)]
    biases += [("rotating", factor, add_rotating) for factor in (10, 30, 100)]
    for bits, largest in ((8, 127), (4, 7)):
        print(f"\n| {bits} bits, bias | " + " | ".join(ROUNDINGS) + " |")
        print("|---" + "|--:" * len(ROUNDINGS) + "|")
        for kind, factor, add in biases:
            cells = []
            for roundings in ROUNDINGS.values():
                errors = []
                for queries, keys, values, visible in layers:
                    rms = np.sqrt((keys**2).mean())
                    biased = add(queries, keys, factor * rms)
                    errors += measure_errors((*biased, values, visible), roundings, largest)
                cells.append(f"{np.mean(errors):.4f}, {np.quantile(errors, 0.95):.4f}")
            name = kind if factor == 0 else f"{factor} × {kind}"
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
