"""Golden outputs of selectors with a state, from implementations of their authors' formulas.

    python3 tools/make_state_golden.py prompt-eviction > tests/golden/prompt-eviction.json
    python3 tools/make_state_golden.py tova > tests/golden/tova.json
    python3 tools/make_state_golden.py reuse > tests/golden/reuse.json

The code uses numpy in float64, and shares nothing with this project's code. Keys, values and
queries are small integers divided by 8. Details that the authors leave open are marked OPEN:

- key-norm: Devoto et al. (2024), https://arxiv.org/abs/2406.11430.
- key-difference: KeyDiff of Park et al. (2025), https://arxiv.org/abs/2504.15364, with the mean of
  normalised keys.
- lag: LagKV of Liang et al. (2025), https://arxiv.org/abs/2504.04704, with ranks within partitions
  as in kvpress. OPEN: among tokens of equal score, lower ones are kept first, within a partition
  and between partitions; a second prompt ranks all kept tokens again.
- expected-attention: Devoto et al. (2025), https://arxiv.org/abs/2510.00636, with the covariance
  and the norms of values, as in kvpress. OPEN: the distribution of future queries is that of the
  observed ones, which have their rotary embedding.
- tova: Oren et al. (2024), https://arxiv.org/abs/2401.06104, with the mean over the query heads of
  a KV head. OPEN: a prompt evicts once, by its last query.
- reuse: the steps at which a selection is made, and the correction by the mean cosine of Liu et al.
  (2025), https://arxiv.org/abs/2505.13109. OPEN: the step that selects reads its own selection.
"""

import sys

import numpy as np

import golden_cases


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def best(scores, size):
    """Returns the places of the best scores, ascending; of equal scores, lower ones come first."""
    ranking = np.argsort(-scores, kind="stable")
    if 0 < size < len(scores):
        gap = scores[ranking[size - 1]] - scores[ranking[size]]
        if 0 < gap < 1e-6 * np.abs(scores).max():
            raise ValueError(f"a gap of {gap} at the cut: choose other numbers")
    return sorted(ranking[:size].tolist())


def score_key_norm(keys, values, queries, config):
    return -np.linalg.norm(keys, axis=1)


def score_key_difference(keys, values, queries, config):
    directions = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    anchor = directions.mean(axis=0)
    return -directions @ anchor / np.linalg.norm(anchor)


def score_lag(keys, values, queries, config):
    """Returns infinity for tokens that are always kept, also among the first ones."""
    sink, size = config["sink"], config["partition"]
    partitions = (len(keys) - sink) // size
    scores = np.full(len(keys), np.inf)
    for i in range(partitions - 1):
        here = slice(sink + i * size, sink + (i + 1) * size)
        after = slice(sink + (i + 1) * size, sink + (i + 2) * size)
        total = np.zeros(size)
        for rows in (keys, values):
            least, largest = rows[after].min(axis=0), rows[after].max(axis=0)
            if (least == largest).any():
                raise ValueError("an element without a range: choose other numbers")
            scaled = (rows[here] - least) / (largest - least)
            total += softmax(scaled.std(axis=1, ddof=1)) / 2
        order = sorted(range(size), key=lambda t: (total[t], -t))
        scores[here][order] = np.arange(size) / size
    return scores


def score_expected_attention(keys, values, queries, config):
    """Uses the mean and the covariance matrix of the queries, `[group, queries, dim]`."""
    rest = keys[config["sink"] :]
    weights = []
    for of_head in queries:
        mean = of_head.mean(axis=0)
        centred = of_head - mean
        covariance = centred.T @ centred / len(of_head)
        exponents = rest @ mean + np.einsum("ni,ij,nj->n", rest, covariance, rest) / 2
        weights.append(softmax(exponents))
    scores = np.mean(weights, axis=0) * np.linalg.norm(values[config["sink"] :], axis=1)
    return np.concatenate([np.full(config["sink"], np.inf), scores])


SCORES = {
    "key-norm": score_key_norm,
    "key-difference": score_key_difference,
    "lag": score_lag,
    "expected-attention": score_expected_attention,
}


def evict(kept, keys, values, queries, config):
    """Returns the tokens that are kept at the end of a prompt."""
    if len(kept) <= config["size"]:
        return kept
    scores = SCORES[config["score"]](keys[kept], values[kept], queries, config)
    scores[: config["sink"]] = np.inf
    always = np.flatnonzero(np.isinf(scores)).tolist()
    others = np.flatnonzero(~np.isinf(scores))
    places = best(scores[others], max(config["size"] - len(always), 0))
    return [kept[place] for place in sorted([*always, *others[places].tolist()])]


def prompt_eviction():
    cases = []
    rng = np.random.default_rng(20261105)
    for score in SCORES:
        for group, dim, ends, size, sink, partition in [
            (1, 6, [60, 75], 20, 4, 128),
            (3, 8, [64, 90], 30, 2, 8),
        ]:
            if score == "lag" and partition == 128:
                partition = 9
            tokens, last = ends[-1], 12
            keys, values = rng.integers(-15, 16, (2, tokens, dim))
            keys += rng.integers(-9, 10, dim)
            queries = rng.integers(-7, 8, (len(ends), group, last, dim))
            config = {"size": size, "score": score, "sink": sink, "partition": partition}
            kept, after, first = [], [], 0
            for end, of_prompt in zip(ends, queries):
                kept = [*kept, *range(first, end)]
                kept = evict(kept, keys / 8, values / 8, of_prompt / 8, config)
                after.append(kept)
                first = end
            cases.append(
                {
                    "config": config,
                    "ends": ends,
                    "key_eighths": keys.tolist(),
                    "value_eighths": values.tolist(),
                    "query_eighths": queries.tolist(),
                    "kept": after,
                }
            )
    return cases


def tova():
    """Returns cases with the tokens kept after a prompt and after each step of one token."""
    cases = []
    rng = np.random.default_rng(20261106)
    for group, prompt, last, steps, size in [
        (1, 20, 6, 25, 12),
        (3, 30, 30, 30, 16),
        (2, 10, 3, 20, 14),
    ]:
        dim, tokens = 4, prompt + steps
        queries = rng.integers(-15, 16, (group, last + steps, dim))
        keys = rng.integers(-15, 16, (tokens, dim))

        def keep_attended(kept, row):
            weights = softmax(queries[:, row] / 8 @ keys[kept].T / 8).mean(axis=0)
            ranked = np.sort(weights)[::-1]
            # The code under test rounds weights to 12 bits.
            if len(kept) > size and ranked[size] > ranked[size - 1] * (1 - 2e-3):
                raise ValueError("two weights at the cut are close: choose other numbers")
            return [kept[place] for place in best(weights, size)]

        kept = keep_attended(list(range(prompt)), last - 1)
        after = [kept]
        for step in range(steps):
            kept = keep_attended([*kept, prompt + step], last + step)
            after.append(kept)
        cases.append(
            {
                "config": {"size": size},
                "prompt": prompt,
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "kept": after,
            }
        )
    return cases


def take(scores, size, taken):
    """Returns the `taken` tokens and the `size` best others."""
    others = [t for t in range(len(scores)) if t not in taken]
    return sorted([*taken, *(others[place] for place in best(scores[others], size))])


def mean_cosine(queries, others):
    products = (queries * others).sum(axis=-1)
    lengths = np.linalg.norm(queries, axis=-1) * np.linalg.norm(others, axis=-1)
    return (products / lengths).mean()


def reuse():
    cases = []
    rng = np.random.default_rng(20261104)
    taken = [0, 1]
    for group, every, similarity, score in [
        (1, 3, None, "head"),
        (2, 4, None, "group"),
        (3, 100, 0.7, "head"),
        (2, 5, 0.8, "head"),
    ]:
        dim, prompt, steps, size = 8, 40, 24, 7
        # A walk, so that successive queries are similar.
        queries = rng.integers(-15, 16, (group, steps, dim))
        moves = rng.integers(-6, 7, (group, steps, dim))
        for step in range(1, steps):
            if rng.random() < 0.8:
                queries[:, step] = queries[:, step - 1] + moves[:, step]
        keys = rng.integers(-15, 16, (prompt + steps, dim))
        picks, last, picked, selections = [], None, None, 0
        for step in range(steps):
            visible = prompt + step + 1
            now = queries[:, step]
            if (
                last is None
                or step - last >= every
                or (similarity is not None and mean_cosine(now, queries[:, last]) < similarity)
            ):
                logits = now / 8 @ keys[:visible].T / 8
                if score == "group":
                    logits = np.repeat(logits.sum(axis=0, keepdims=True), group, axis=0)
                last, picked = step, [take(row, size, taken) for row in logits]
                selections += 1
            new = list(range(prompt + last + 1, visible))
            picks.append([[*row, *(t for t in new if t not in row)] for row in picked])
        if not 1 < selections < steps:
            raise ValueError(f"{selections} selections: choose other numbers")
        config = {"every": every, "of": {"type": "oracle-top-k", "size": size, "score": score}}
        if similarity is not None:
            config["similarity"] = similarity
        cases.append(
            {
                "config": config,
                "prompt": prompt,
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "picks": [[sorted(row) for row in rows] for rows in picks],
            }
        )
    return cases


METHODS = {"prompt-eviction": prompt_eviction, "tova": tova, "reuse": reuse}


if __name__ == "__main__":
    sys.exit(golden_cases.main("make_state_golden", METHODS))
