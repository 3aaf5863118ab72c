"""Golden outputs of selectors, from implementations of their authors' descriptions.

    python3 tools/make_selectors_golden.py sparq > tests/golden/sparq.json
    python3 tools/make_selectors_golden.py hata > tests/golden/hata.json
    python3 tools/make_selectors_golden.py duo > tests/golden/duo.json
    python3 tools/make_selectors_golden.py pyramid > tests/golden/pyramid.json
    python3 tools/make_selectors_golden.py scissorhands > tests/golden/scissorhands.json
    python3 tools/make_selectors_golden.py fastgen > tests/golden/fastgen.json

The code uses numpy in float64, and shares nothing with this project's code. Keys and queries are
small integers divided by 8, so that all precisions of a cache store them exactly. Details that the
authors leave open are marked OPEN:

- sparq: steps 1 and 2 of appendix B of Ribar et al. (2023), https://arxiv.org/abs/2312.04985, with
  the mask of algorithm 1.
- hata: codes, top-k and training loss of Gong et al. (2025), https://arxiv.org/abs/2506.02572, with
  the last term of the loss squared; gradients by central differences; two steps of stochastic
  gradient descent as in torch.optim.SGD.
- duo: the KV heads that read all tokens in Xiao et al. (2024), https://arxiv.org/abs/2410.10819.
  Their gate reaches the quantile of the share of streaming heads. The authors' noise, which only
  breaks ties, is omitted; these gates have no ties.
- scissorhands: algorithm 2 of Liu et al. (2023), https://arxiv.org/abs/2305.17118. OPEN: the query
  heads of a KV head vote by the mean of their weights; the uniform weight is that over the stored
  tokens; among tokens with equal counts, later ones are evicted first.
- fastgen: algorithms 1 and 2 of Ge et al. (2023), https://arxiv.org/abs/2310.01801, over the last
  rows of a prompt's attention map. OPEN: the norm of equation 1 is half the sum of the differences
  of a row, averaged over rows and query heads; the tokens of a policy are a union, in which the
  most frequent tokens are taken from all stored tokens; shares are rounded down to whole tokens.
- pyramid: the number of tokens that each layer stores in the code of Cai et al. (2024),
  https://arxiv.org/abs/2406.02069, including its window.
"""

import sys

import numpy as np

import golden_cases


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def top(x, k):
    """Returns the indices of the k largest values; of equal values, lower indices come first."""
    return np.argsort(-x, kind="stable")[:k]


def sparq_attention(queries, keys, r, k, local):
    """Returns the channels, scores and picks of a KV head.

    Queries `[group, dim]` and keys `[tokens, dim]` are not scaled.
    """
    dim = queries.shape[-1]
    magnitudes = np.abs(queries)
    i1 = top(magnitudes.sum(axis=0), r)
    tau = np.sqrt(
        dim * magnitudes[:, i1].sum(axis=-1, keepdims=True) / magnitudes.sum(axis=-1, keepdims=True)
    )
    s_hat = softmax(queries[:, i1] @ keys[:, i1].T / tau)
    mask = np.arange(len(keys)) >= len(keys) - local
    summed = s_hat.sum(axis=0)
    i2 = top(summed + mask * len(queries), k)
    return i1, summed, i2


def sparq():
    cases = []
    rng = np.random.default_rng(20260101)
    for group, dim, tokens, r, k, local in [
        (1, 8, 40, 3, 12, 3),
        (3, 16, 60, 5, 16, 4),
        (4, 16, 50, 16, 8, 2),
    ]:
        queries = rng.integers(-31, 32, (group, dim))
        keys = rng.integers(-31, 32, (tokens, dim))
        channels, scores, picks = sparq_attention(queries / 8, keys / 8, r, k, local)
        cases.append(
            {
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "channels": sorted(channels.tolist()),
                "size": k,
                "window": local,
                "scores": scores.tolist(),
                "picks": sorted(picks.tolist()),
            }
        )
    return cases


def hata_picks(queries, keys, weight, k):
    """Returns the tokens whose codes have the smallest sum of Hamming distances to the group's.

    Of equal tokens, lower ones come first.
    """
    code = lambda rows: rows @ weight > 0
    distance = (code(queries)[:, None, :] != code(keys)[None, :, :]).sum(axis=(0, 2))
    return top(-distance, k)


def hata_targets(scores, share):
    """Returns the targets of a query: 20 down to 1 for its best keys by rank, -1 for the others."""
    positive = max(int(share * len(scores)), 1)
    targets = -np.ones(len(scores))
    targets[top(scores, positive)] = np.linspace(20, 1, positive)
    return targets


def hata_loss(weight, queries, keys, targets):
    h = lambda rows: 2 / (1 + np.exp(-0.1 * rows @ weight)) - 1
    hq, hk = h(queries), h(keys)
    distance = ((hq[:, None, :] - hk[None, :, :]) ** 2).sum(axis=-1)
    balance = (hk.mean(axis=0) ** 2).mean()
    apart = np.linalg.norm(weight.T @ weight - np.eye(weight.shape[1])) ** 2
    return 0.01 * (targets * distance).mean() + 1.0 * balance + 2.0 * apart


def hata_step(weight, velocity, gradient):
    """Makes a step with learning rate 0.1, momentum 0.9 and weight decay 1e-6."""
    velocity = 0.9 * velocity + gradient + 1e-6 * weight
    return weight - 0.1 * velocity, velocity


def differences(function, x, h=1e-5):
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][place] += h
        moved[1][place] -= h
        gradient[place] = (function(moved[0]) - function(moved[1])) / (2 * h)
    return gradient


def hata():
    cases = []
    rng = np.random.default_rng(20260102)
    for group, dim, bits, tokens, k in [(3, 8, 24, 50, 9), (2, 6, 4, 30, 5)]:
        queries = rng.integers(-31, 32, (group, dim))
        keys = rng.integers(-31, 32, (tokens, dim))
        basis = np.linalg.qr(rng.standard_normal((max(dim, bits), min(dim, bits))))[0]
        # With extended precision, the printed digits do not depend on the machine's BLAS.
        weight = np.round(basis if dim > bits else basis.T, 3).astype(np.longdouble)
        targets = np.stack([hata_targets(scores, 0.1) for scores in queries @ keys.T])
        loss = lambda weight: hata_loss(weight, queries, keys, targets)
        first, velocity = hata_step(weight, np.zeros_like(weight), differences(loss, weight))
        second, _ = hata_step(first, velocity, differences(loss, first))
        cases.append(
            {
                "queries": queries.tolist(),
                "keys": keys.tolist(),
                "weight": weight.astype(float).tolist(),
                "size": k,
                "picks": sorted(hata_picks(queries, keys, weight, k).tolist()),
                "targets": targets.tolist(),
                "losses": [round(float(loss(matrix)), 12) for matrix in (weight, first)],
                "after_two_steps": np.round(second.astype(float), 9).tolist(),
            }
        )
    return cases


def duo():
    cases = []
    rng = np.random.default_rng(20260103)
    for layers, heads in [(4, 3), (7, 8), (1, 2)]:
        gates = np.clip(
            np.round(rng.uniform(-0.1, 0.9, (layers, heads)), 4), 0.0001, 1
        ) + 1e-6 * np.arange(layers * heads).reshape(layers, heads)
        for share in [0.1, 0.25, 0.5, 0.75, 0.93]:
            retrieval = gates >= np.quantile(gates, share)
            cases.append(
                {
                    "gates": np.round(gates, 6).tolist(),
                    "streaming": share,
                    "retrieval": retrieval.tolist(),
                }
            )
    return cases


def pyramid():
    capacity, window, beta, layers = 614, 32, 20, 30
    least = (capacity - window) // beta
    most = (capacity - window) * 2 - least
    step = (most - least) // (layers - 1)
    kept = [most - layer * step + window for layer in range(layers)]
    return [{"capacity": capacity, "window": window, "kept": kept}]


def scissorhands():
    """Returns cases with the tokens stored after a prompt and after each step of one token."""
    cases = []
    rng = np.random.default_rng(20260104)
    for group, prompt, last, steps, size, recent, history, drop in [
        (1, 20, 6, 25, 12, 3, 8, 0.5),
        (3, 30, 30, 30, 16, 4, 70, 0.25),
        (2, 10, 3, 20, 12, 2, 5, 0.75),
    ]:
        dim, tokens = 4, prompt + steps
        queries = rng.integers(-15, 16, (group, last + steps, dim))
        keys = rng.integers(-15, 16, (tokens, dim))
        kept, low, after = list(range(prompt)), {token: {} for token in range(tokens)}, []

        def observe(row, position):
            visible = [token for token in kept if token <= position]
            weights = softmax(queries[:, row] / 8 @ keys[visible].T / 8).mean(axis=0)
            for token, weight in zip(visible, weights):
                low[token][row] = weight < 1 / len(visible)

        def compress(row, seen):
            if len(kept) > size:
                old = [token for token in kept if token < seen - recent]
                count = {
                    token: sum(flag for when, flag in low[token].items() if when > row - history)
                    for token in old
                }
                stay = sorted(old, key=lambda token: (count[token], token))
                kept[:] = sorted(
                    [
                        *stay[: max(size - int(drop * size) - recent, 0)],
                        *(token for token in kept if token >= seen - recent),
                    ]
                )
            after.append(list(kept))

        for row in range(last):
            observe(row, prompt - last + row)
        compress(last - 1, prompt)
        for row in range(last, last + steps):
            token = prompt + row - last
            kept.append(token)
            observe(row, token)
            compress(row, token + 1)
        config = {"size": size, "recent": recent, "history": history, "drop": drop}
        cases.append(
            {
                "config": config,
                "prompt": prompt,
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "kept": after,
            }
        )
    return cases


SPECIAL, PUNCTUATION = "special", "punctuation"


def fastgen_sets(classes, frequency, tokens, seen, frequent, local):
    """Returns the compressed caches of all policies, from the cheapest to the full one.

    `tokens` are the stored tokens after `seen` tokens of the sequence.
    """
    select = lambda name: {token for token in tokens if classes[token] == name}
    ranked = sorted(tokens, key=lambda token: (-frequency[token], token))
    special = select(SPECIAL)
    punctuation = special | select(PUNCTUATION)
    heavy = punctuation | set(ranked[: max(int(frequent * seen), 1)])
    recent = heavy | {token for token in tokens if token >= seen - max(int(local * seen), 1)}
    return [special, punctuation, heavy, recent, set(tokens)]


def fastgen_distance(row, kept):
    """Returns half the L1 distance between a row of attention and that over a compressed cache."""
    mask = np.isin(np.arange(len(row)), list(kept))
    if not mask.any():
        return 1.0
    compressed = np.where(mask, row, 0) / row[mask].sum()
    return np.abs(row - compressed).sum() / 2


def fastgen_head(queries, keys, classes, prompt, recover, frequent, local):
    """Runs FastGen on a KV head.

    Queries are `[group, last rows of the prompt + steps, dim]`, keys `[prompt + steps, dim]`.
    Returns the recovery of each policy, the chosen policy, and the tokens stored after the prompt
    and after each step.
    """
    steps = len(keys) - prompt
    last = queries.shape[1] - steps
    frequency, maps = np.zeros(len(keys)), []
    for row in range(last):
        position = prompt - last + row
        attention = softmax(queries[:, row] @ keys[: position + 1].T)
        frequency[: position + 1] += attention.sum(axis=0)
        maps.extend(attention)
    ladder = fastgen_sets(classes, frequency, list(range(prompt)), prompt, frequent, local)
    recovered = [1 - np.mean([fastgen_distance(row, kept) for row in maps]) for kept in ladder]
    choice = next(
        i for i, share in enumerate(recovered) if share >= recover or i == len(ladder) - 1
    )
    kept = sorted(ladder[choice])
    after = [kept]
    for row in range(last, last + steps):
        token = prompt + row - last
        kept = [*kept, token]
        attention = softmax(queries[:, row] @ keys[kept].T)
        frequency[kept] += attention.sum(axis=0)
        kept = sorted(fastgen_sets(classes, frequency, kept, token + 1, frequent, local)[choice])
        after.append(kept)
    return recovered, choice, after


def fastgen():
    cases = []
    rng = np.random.default_rng(20260105)
    for group, prompt, last, steps, recover, frequent, local, shape in [
        (1, 30, 8, 20, 0.6, 0.3, 0.3, SPECIAL),
        (2, 30, 30, 20, 0.5, 0.3, 0.3, PUNCTUATION),
        (3, 40, 12, 25, 0.7, 0.3, 0.3, "frequent"),
        (2, 40, 6, 25, 0.8, 0.1, 0.4, "local"),
        (2, 24, 5, 12, 0.95, 0.3, 0.3, "full"),
    ]:
        dim, tokens = 4, prompt + steps
        queries = rng.integers(0, 16, (group, last + steps, dim))
        keys = rng.integers(-7, 8, (tokens, dim))
        classes = rng.choice(["other", SPECIAL, PUNCTUATION], tokens, p=[0.7, 0.12, 0.18]).tolist()
        classes[0] = SPECIAL
        for token in range(tokens):
            if classes[token] == shape:
                keys[token] += 8
            elif shape == PUNCTUATION and classes[token] == SPECIAL:
                keys[token] += 6
        if shape == "frequent":
            keys[2:prompt:4] += 8
        if shape == "local":
            keys[2 * prompt // 3 :] += 8
        if shape == "full":
            keys //= 4
        recovered, choice, kept = fastgen_head(
            queries / 8, keys / 8, classes, prompt, recover, frequent, local
        )
        config = {"recover": recover, "frequent": frequent, "local": local}
        cases.append(
            {
                "config": config,
                "prompt": prompt,
                "query_eighths": queries.tolist(),
                "key_eighths": keys.tolist(),
                "classes": classes,
                "recovered": recovered,
                "choice": choice,
                "kept": kept,
            }
        )
    return cases


METHODS = {
    "sparq": sparq,
    "hata": hata,
    "duo": duo,
    "pyramid": pyramid,
    "scissorhands": scissorhands,
    "fastgen": fastgen,
}


if __name__ == "__main__":
    sys.exit(golden_cases.main("make_selectors_golden", METHODS))
