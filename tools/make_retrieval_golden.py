"""Golden outputs of selectors that rank all tokens, from their authors' descriptions.

    python3 tools/make_retrieval_golden.py rotated-codes > tests/golden/rotated-codes.json
    python3 tools/make_retrieval_golden.py ark-vale > tests/golden/ark-vale.json
    python3 tools/make_retrieval_golden.py socket > tests/golden/socket.json

The code uses numpy in float64, and shares nothing with this project's code but the streams of
random numbers, which are those of tests/golden/make_order.py. Keys and queries are small integers
divided by 8. Details that the authors leave open are marked OPEN:

- rotated-codes: codes of RaBitQ (https://arxiv.org/abs/2405.12497) with 2 bits for each element,
  as in its extension (https://arxiv.org/abs/2409.09913), of keys that are centred by the means of
  blocks of 64. OPEN: the rotation is three rounds of random signs and a Hadamard transform; the
  levels are those of the best uniform quantiser of normal numbers; means and factors are rounded to
  bfloat16, and the rotated query to 8 bits.
- ark-vale: the digest "cuboid-mean" of Chen et al. (NeurIPS 2024).
- socket: sections 4 and 5 of the description in sparse-attention-hub of Joshi et al. (2026),
  https://arxiv.org/abs/2602.06283, with its softmax over all buckets. OPEN: tokens after the last
  whole block of 128 are always read.
"""

import math
import sys
from pathlib import Path

import numpy as np

import golden_cases

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))
from make_order import block  # noqa: E402

PURPOSES = 1 << 16


def top(scores, size, taken):
    """Returns the `taken` tokens and the `size` best others; of equal tokens, lower ones first."""
    ranking = [t for t in np.argsort(-scores, kind="stable").tolist() if t not in taken]
    gap = scores[ranking[size - 1]] - scores[ranking[size]]
    if 0 < gap < 1e-3:
        raise ValueError(f"a gap of {gap} at the cut: choose other numbers")
    return sorted([*taken, *ranking[:size]])


def words(place, purpose, count):
    """Returns the first words of a stream."""
    blocks = range(-(-count // 4))
    return [word for index in blocks for word in block(place, purpose, index)][:count]


def round_bf16(x):
    """Rounds to bfloat16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def hadamard(x):
    """Applies the orthogonal Hadamard transform to the last axis, by its matrix."""
    matrix = np.ones((1, 1))
    while len(matrix) < x.shape[-1]:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return x @ matrix / math.sqrt(len(matrix))


def rotate(x, signs):
    dim = x.shape[-1]
    part = 1 << (dim.bit_length() - 1)
    for round_signs in signs:
        x = x * round_signs
        x[..., :part] = hadamard(x[..., :part])
        if part < dim:
            x[..., dim - part :] = hadamard(x[..., dim - part :])
    return x


def keep_distance(x, least, what):
    """Fails if a number is so close to a whole number that rounding decides."""
    distance = np.abs(x - np.round(x)).min()
    if distance < least:
        raise ValueError(f"{what} within {distance} of a border: choose other numbers")


def code_scores(queries, keys, place):
    """Returns the scores of all keys for each query."""
    dim = keys.shape[1]
    signs = []
    for word in words(place, PURPOSES - 1 - 4, -(-3 * dim // 32)):
        signs += [-1.0 if word >> bit & 1 else 1.0 for bit in range(32)]
    signs = np.array(signs[: 3 * dim]).reshape(3, dim)
    rotated = rotate(queries.copy(), signs)
    peaks = np.abs(rotated).max(axis=1, keepdims=True)
    keep_distance(rotated / peaks * 127 + 0.5, 1e-4, "a query's element")
    rounded = np.floor(rotated / peaks * 127 + 0.5) * peaks / 127
    scores = queries @ keys.T
    for start in range(0, len(keys) - 63, 64):
        part = rotate(keys[start : start + 64].copy(), signs)
        mean = round_bf16(part.mean(axis=0))
        rest = part - mean
        scaled = rest / (0.9957 * np.sqrt((rest**2).mean(axis=1, keepdims=True))) + 2
        keep_distance(scaled, 1e-5, "a key's element")
        codes = np.clip(np.floor(scaled), 0, 3) - 1.5
        factors = round_bf16((rest**2).sum(axis=1) / (rest * codes).sum(axis=1))
        scores[:, start : start + 64] = (rotated @ mean)[:, None] + factors * (rounded @ codes.T)
    return scores


def rotated_codes():
    cases = []
    rng = np.random.default_rng(20261161)
    for group, dim, tokens, size, layer, kv_head in [
        (1, 12, 70, 9, 0, 0),
        (3, 20, 150, 12, 5, 2),
        (2, 32, 200, 30, 3, 1),
    ]:
        seed = int(rng.integers(1 << 40))
        place = dict(seed=seed, sequence=0, layer=layer, kv_head=kv_head, member=0, step=0)
        queries = rng.integers(-15, 16, (group, dim))
        keys = rng.integers(-15, 16, (tokens, dim)) + rng.integers(-15, 16, dim)
        taken = sorted(rng.choice(tokens, 8, replace=False).tolist())
        scores = code_scores(queries / 8, keys / 8, place)
        cases.append(
            {
                "seed": seed,
                "layer": layer,
                "kv_head": kv_head,
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "size": size,
                "taken": taken,
                "scores": np.round(scores, 5).tolist(),
                "picks": [top(row, size, taken) for row in scores],
                "group_picks": top(scores.sum(axis=0), size, taken),
            }
        )
    return cases


def mean_box_scores(query, keys, page):
    """Returns the score of each page: the largest product of the query with its mean box."""
    scores = []
    for start in range(0, len(keys), page):
        part = keys[start : start + page]
        middle = (part.max(axis=0) + part.min(axis=0)) / 2
        radius = np.abs(part - middle).mean(axis=0)
        corners = np.stack([query * (middle - radius), query * (middle + radius)])
        scores.append(corners.max(axis=0).sum())
    return np.array(scores)


def ark_vale():
    cases = []
    rng = np.random.default_rng(20261102)
    for group, dim, tokens, page, size, score in [
        (1, 8, 100, 16, 20, "head"),
        (3, 12, 130, 32, 40, "head"),
        (2, 16, 77, 5, 13, "group"),
    ]:
        queries = rng.integers(-15, 16, (group, dim))
        keys = rng.integers(-15, 16, (tokens, dim))
        taken = sorted(rng.choice(tokens, 6, replace=False).tolist())
        scores = [mean_box_scores(query / 8, keys / 8, page) for query in queries]
        if score == "group":
            scores = [sum(scores)] * group
        of_tokens = [np.repeat(row, page)[:tokens] for row in scores]
        cases.append(
            {
                "config": {"size": size, "page": page, "score": score},
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "taken": taken,
                "scores": np.round(scores, 6).tolist(),
                "picks": [top(row, size, taken) for row in of_tokens],
            }
        )
    return cases


def gaussians(place, count, dim):
    """Returns vectors of Gaussians by the method of Box and Muller."""
    vectors = []
    for vector in range(count):
        drawn = words({**place, "step": vector}, PURPOSES - 1 - 2, dim + dim % 2)
        numbers = []
        for a, b in zip(drawn[::2], drawn[1::2]):
            radius = math.sqrt(-2 * math.log((a + 0.5) / 2**32))
            angle = 2 * math.pi * (b + 0.5) / 2**32
            numbers += [radius * math.cos(angle), radius * math.sin(angle)]
        vectors.append(numbers[:dim])
    return np.array(vectors)


def socket_scores(query, keys, values, planes, temperature):
    """Returns the scores of all keys, by a softmax over the corners of a hypercube."""
    tables, bits, dim = planes.shape
    corners = np.array([[1 if r >> j & 1 else -1 for j in range(bits)] for r in range(1 << bits)])
    collisions = np.zeros(len(keys))
    for table in planes:
        products = keys @ table.T
        if np.abs(products).min() < 1e-5:
            raise ValueError("a key on a plane: choose other numbers")
        buckets = ((products > 0) << np.arange(bits)).sum(axis=1)
        logits = corners @ np.tanh(table @ query) / math.sqrt(dim) / temperature
        probabilities = np.exp(logits - logits.max())
        collisions += (probabilities / probabilities.sum())[buckets]
    return collisions * np.linalg.norm(values, axis=1)


def socket():
    cases = []
    rng = np.random.default_rng(20261103)
    for group, dim, tokens, size, tables, bits, temperature in [
        (1, 8, 140, 15, 10, 4, 0.3),
        (2, 16, 300, 30, 25, 7, 0.5),
    ]:
        seed, sequence = int(rng.integers(1 << 40)), int(rng.integers(1 << 10))
        place = dict(seed=seed, sequence=sequence, layer=0, kv_head=0, member=0, step=0)
        queries = rng.integers(-3, 4, (group, dim))
        keys, values = rng.integers(-15, 16, (2, tokens, dim))
        taken = sorted(rng.choice(tokens, 6, replace=False).tolist())
        planes = gaussians(place, tables * bits, dim).reshape(tables, bits, dim)
        whole = tokens // 128 * 128
        taken_too = sorted({*taken, *range(whole, tokens)})
        scores = [
            socket_scores(query / 8, keys[:whole] / 8, values[:whole] / 8, planes, temperature)
            for query in queries
        ]
        padded = [np.concatenate([row, np.zeros(tokens - whole)]) for row in scores]
        cases.append(
            {
                "config": {
                    "size": size,
                    "tables": tables,
                    "bits": bits,
                    "temperature": temperature,
                },
                "seed": seed,
                "sequence": sequence,
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "value_eighths": values.tolist(),
                "taken": taken,
                "scores": np.round(scores, 8).tolist(),
                "picks": [top(row, size, taken_too) for row in padded],
            }
        )
    return cases


METHODS = {
    "rotated-codes": rotated_codes,
    "ark-vale": ark_vale,
    "socket": socket,
}


if __name__ == "__main__":
    sys.exit(golden_cases.main("make_retrieval_golden", METHODS))
