"""Golden outputs of selectors with clusters or graphs of keys: tests/golden/clusters.json.

    python3 tools/make_cluster_golden.py > tests/golden/clusters.json

The code implements the papers independently of the project, in float64 with numpy. The random order
of the starting points of k-means is that of tests/golden/make_order.py. Details that the papers
leave open are marked OPEN:

- Squeezed Attention (https://arxiv.org/abs/2411.09688): keys are clustered by direction (Euclidean
  k-means on normalized keys), and a cluster is represented by the mean of its original keys. With
  the mean c of its cluster, a key has the score exp(q c) / sum of N exp(q c). The threshold is
  exceeded by a given share of the context's keys, on average over the last queries of the context.
  OPEN: starting points are distinct keys in a random order; the coarse level clusters the means of
  the fine level, and is calibrated in the same way; pruned clusters enter the denominator by their
  coarse means.
- Tactic (https://arxiv.org/abs/2502.12216): clusters are ordered by the product of their mean with
  the query, which orders the tokens. The weights of the first tokens are exact; the others follow
  a / rank + b, fitted to two windows of exact weights. OPEN: the windows are at a tenth and at six
  tenths of the order, and a hundredth wide.
- RetrievalAttention (https://arxiv.org/abs/2409.10516): the nearest keys of each query of the
  prompt are linked to each other, and a best-first search with a beam follows the links. OPEN: each
  key of a query's list is linked to the first key and to the preceding one, rank by rank, up to a
  largest number of links per key; each token is linked to its neighbours in the text; the search
  begins at the newest token and at the nearest keys of the last queries.
- ClusterKV (https://arxiv.org/abs/2412.03213): keys are clustered by direction, those of the prompt
  and those of each block of later tokens, and a cluster is represented by the mean of its keys. The
  clusters with the largest products with the query are read, the last one in part. OPEN: starting
  points are distinct keys in a random order; tokens after the last block are always read; of
  clusters with the same product, lower tokens come first.
"""

import heapq
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "golden"))
from make_order import order  # noqa: E402

PLACE = dict(seed=7, sequence=0, layer=3, kv_head=1, member=0, step=0)
STARTS = (1 << 16) - 1 - 3  # Purpose of the random stream that orders the points.
TOKENS, PROMPT, DIM, MEMBERS, LAST = 240, 200, 6, 2, 14


def size_of(size, tokens):
    return min(tokens, size if isinstance(size, int) else max(1, int(size * tokens)))


def k_means(points, most, iterations, which):
    """Returns the labels of the points, `[tokens]`, numbered without empty clusters."""
    start = []
    for i in order({**PLACE, "step": which}, len(points), len(points), STARTS):
        if len(start) < most and not any((points[i] == points[j]).all() for j in start):
            start.append(i)
    centroids, labels = points[start].copy(), None

    def nearest():
        return ((points[:, None, :] - centroids[None]) ** 2).sum(-1).argmin(1)

    for _ in range(iterations):
        new = nearest()
        if labels is not None and (new == labels).all():
            break
        labels = new
        for c in range(len(centroids)):
            if (labels == c).any():
                centroids[c] = points[labels == c].mean(0)
    return np.unique(nearest(), return_inverse=True)[1]


def means(keys, labels):
    return np.stack([keys[labels == c].mean(0) for c in range(labels.max() + 1)])


def directions(points):
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    return np.divide(points, norms, out=np.zeros_like(points), where=norms > 0)


class Level:
    """Clusters of keys, with their scores for a query."""

    def __init__(self, keys, labels):
        self.labels, self.means = labels, means(keys, labels)
        self.counts = np.bincount(labels)

    def weights(self, query):
        return np.exp(self.means @ query)

    def scores(self, query):
        weights = self.weights(query)
        return weights / (self.counts * weights).sum()

    def threshold(self, queries, size):
        """Returns the score that a share `size` of the keys exceeds, on average over the group."""
        average = [
            np.mean([self.scores(q)[self.labels] for q in of_member], axis=0)
            for of_member in queries
        ]
        pooled = np.sort(np.concatenate(average))[::-1]
        passing = size_of(size, len(self.labels)) * len(queries)
        return pooled[passing] if passing < len(pooled) else 0.0


def squeezed(keys, prompt, queries, config):
    """Returns a case: the levels at the end of the prompt, and the picks of each query."""
    context = keys[: PROMPT - config["window"]]
    observed = prompt[:, -config["window"] :]
    clusters = size_of(config["clusters"], len(context))
    fine = Level(context, k_means(directions(context), clusters, config["iterations"], 0))
    threshold = (
        fine.threshold(observed, config["size"]) if "size" in config else config["threshold"]
    )
    found = dict(config=config, labels=fine.labels.tolist(), threshold=threshold)
    coarse = None
    if "coarse" in config:
        clusters = size_of(config["coarse"]["clusters"], len(context))
        above = k_means(directions(fine.means), clusters, config["iterations"], 1)
        coarse = Level(context, above[fine.labels])
        coarse_threshold = coarse.threshold(observed, config["coarse"]["size"])
        found |= dict(coarse_labels=coarse.labels.tolist(), coarse_threshold=coarse_threshold)
    found["picks"] = []
    for query in queries:
        scores = fine.scores(query)
        if coarse:
            kept = coarse.scores(query) > coarse_threshold
            kept_fine = kept[above]
            weights, coarse_weights = fine.weights(query), coarse.weights(query)
            total = (fine.counts * weights)[kept_fine].sum()
            total += (coarse.counts * coarse_weights)[~kept].sum()
            scores = np.where(kept_fine, weights / total, 0.0)
        picked = np.flatnonzero(scores[fine.labels] > threshold)
        found["picks"].append([*picked.tolist(), *range(len(context), len(keys))])
    return found


def curve(weight_at, tokens, exact):
    """Returns the weight of each rank, exact for the first ones, and a and b of the curve."""
    width = max(1, tokens // 100)
    exact = size_of(exact, tokens)
    first = max(exact, tokens // 10)
    second = max(first + width, tokens * 6 // 10)
    ranks = np.arange(1, tokens + 1)
    if second + width > tokens:
        return np.array([weight_at(r) for r in range(tokens)]), None
    windows = [np.arange(start, start + width) for start in (first, second)]
    y = [np.mean([weight_at(r) for r in window]) for window in windows]
    m = [np.mean(1.0 / (window + 1)) for window in windows]
    a = (y[0] - y[1]) / (m[0] - m[1])
    b = y[0] - a * m[0]
    if a < 0:
        a, b = 0.0, (y[0] + y[1]) / 2
    weights = np.maximum(a / ranks + b, 0.0)
    weights[:exact] = [weight_at(r) for r in range(exact)]
    return weights, (a, b)


def tactic(keys, queries, config, taken):
    """Returns a case: clusters of the prompt, which later tokens join, and the picks of queries."""
    clusters = max(1, PROMPT // config["cluster"])
    labels = k_means(keys[:PROMPT], clusters, config["iterations"], 0)
    centroids = means(keys[:PROMPT], labels)
    later = ((keys[PROMPT:, None, :] - centroids[None]) ** 2).sum(-1).argmin(1)
    labels = np.concatenate([labels, later])
    found = dict(config=config, taken=taken, labels=labels.tolist(), curves=[], picks=[])
    for query in queries:
        ranking = np.argsort(-(centroids @ query), kind="stable")
        in_order = [t for c in ranking for t in np.flatnonzero(labels == c) if t not in taken]
        logits = keys[in_order] @ query
        weights, fitted = curve(lambda r: np.exp(logits[r]), len(in_order), config["exact"])
        covered = np.cumsum(weights)
        count = int(np.argmax(covered >= config["mass"] * covered[-1])) + 1
        found["curves"].append(fitted)
        found["picks"].append(sorted(int(t) for t in in_order[:count]))
    return found


def link_keys(keys, prompt, config):
    """Returns the links of each key of the prompt, and the entry points of the search."""
    lists = [
        np.argsort(-(keys @ query), kind="stable")[: config["neighbours"]]
        for of_member in prompt
        for query in of_member
    ]
    links = [[] for _ in keys]

    def link(source, target):
        if target not in links[source] and len(links[source]) < config["degree"]:
            links[source].append(target)

    for rank in range(1, config["neighbours"]):
        for nearest in lists:
            for earlier in dict.fromkeys([int(nearest[0]), int(nearest[rank - 1])]):
                link(earlier, int(nearest[rank]))
                link(int(nearest[rank]), earlier)
    last = len(prompt[0])
    return links, [int(nearest[0]) for nearest in lists[last - 1 :: last]]


def search(keys, query, links, entries, beam, taken):
    """Returns the best tokens that a beam search finds, without those in `taken`."""
    place = lambda token: (-float(keys[token] @ query), token)  # noqa: E731
    entries = dict.fromkeys([len(keys) - 1, *entries])
    seen, ahead = set(entries), [place(token) for token in entries]
    best = sorted(here for here in ahead if here[1] not in taken)[:beam]
    heapq.heapify(ahead)
    while ahead:
        here = heapq.heappop(ahead)
        if len(best) == beam and here > best[-1]:
            break
        token = here[1]
        around = [*(links[token] if token < len(links) else []), token - 1, token + 1]
        for other in around:
            if not 0 <= other < len(keys) or other in seen:
                continue
            seen.add(other)
            there = place(other)
            if len(best) < beam or there < best[-1]:
                heapq.heappush(ahead, there)
                if other not in taken:
                    best = sorted([*best, there])[:beam]
    return [token for _, token in best]


def retrieval(keys, prompt, queries, config, taken):
    """Returns a case: the graph of the prompt's keys, and the picks of each query."""
    links, entries = link_keys(keys[:PROMPT], prompt, config)
    beam = max(config["size"], config.get("beam", 0))
    picks = [
        sorted(search(keys, query, links, entries, beam, taken)[: config["size"]])
        for query in queries
    ]
    return dict(config=config, taken=taken, links=links, picks=picks)


def cluster_kv(keys, queries, config, taken):
    """Returns a case: clusters of the prompt, and the picks of each query."""
    ends = [PROMPT, *range(PROMPT + config["block"], TOKENS + 1, config["block"])]
    blocks, first = [], 0
    for which, end in enumerate(ends):
        part = keys[first:end]
        most = max(1, len(part) // config["cluster"])
        labels = k_means(directions(part), most, config["iterations"], which)
        blocks.append((labels, means(part, labels)))
        first = end
    found = dict(config=config, taken=taken, labels=blocks[0][0].tolist(), picks=[])
    for query in queries:
        scores = np.concatenate([(centroids @ query)[labels] for labels, centroids in blocks])
        others = [t for t in np.argsort(-scores, kind="stable").tolist() if t not in taken]
        after = [t for t in range(ends[-1], TOKENS) if t not in taken]
        found["picks"].append(sorted([*others[: config["size"]], *after]))
    return found


def main():
    rng = np.random.default_rng(1)

    def numbers(shape, scale):
        # Multiples of 1/64 are exact in all float types.
        return np.round(rng.normal(scale=scale, size=shape) * 64) / 64

    topics = numbers((9, DIM), 1.0)
    keys = topics[rng.integers(0, 9, TOKENS)] + numbers((TOKENS, DIM), 0.4)
    prompt, queries = numbers((MEMBERS, LAST, DIM), 0.9), numbers((MEMBERS, DIM), 0.9)
    one = dict(clusters=0.1, size=0.2, window=10, iterations=50)
    two = one | dict(coarse=dict(clusters=6, size=0.25))
    fixed = dict(clusters=20, threshold=0.004, window=30, iterations=3)
    squeezes = [squeezed(keys, prompt, queries, config) for config in (one, two, fixed)]
    by_mass = [dict(mass=mass, cluster=8, exact=0.02, iterations=10) for mass in (0.5, 0.9)]
    tactics = [
        tactic(keys, queries, config, taken)
        for config in by_mass
        for taken in ([], list(range(0, 20)))
    ]
    graphs = [dict(size=12, neighbours=10, degree=4), dict(size=6, beam=30, neighbours=5, degree=8)]
    retrievals = [
        retrieval(keys, prompt, queries, config, taken)
        for config in graphs
        for taken in ([], list(range(60, 120)))
    ]
    cluster_kvs = [
        cluster_kv(keys, queries, config, taken)
        for config, taken in [
            (dict(size=30, cluster=8, block=16, iterations=10), []),
            (dict(size=30, cluster=8, block=16, iterations=10), list(range(0, 20))),
            (dict(size=17, cluster=5, block=7, iterations=3), [2, 150, 239]),
        ]
    ]
    place = {key: PLACE[key] for key in ("seed", "layer", "kv_head")}
    head = dict(
        place=place,
        prompt_tokens=PROMPT,
        keys=keys.tolist(),
        prompt=prompt.tolist(),
        queries=queries.tolist(),
    )
    selectors = dict(
        squeezed=squeezes, tactic=tactics, retrieval=retrievals, cluster_kv=cluster_kvs
    )
    print(json.dumps(dict(head=head, **selectors)))


main()
