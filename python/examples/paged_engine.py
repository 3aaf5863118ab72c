"""Example: an engine with a pool of pages, whose sequences share the pages of a prompt.

The engine decodes a batch of two sequences, ends one of them, and gives its pages to a third. Each
output is compared with attention over all tokens.
"""

import numpy as np

from vattention import PagedAttention, Pipeline

QUERY_HEADS, KV_HEADS, DIM = 4, 2, 64
BLOCKS, BLOCK = 600, 16
PROMPT = 3000
RANDOM = np.random.default_rng(0)


def uniform(*shape):
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


class Engine:
    """One layer, and the block tables and lengths of sequences."""

    def __init__(self, pipeline):
        self.paged = PagedAttention(pipeline, QUERY_HEADS, KV_HEADS, DIM)
        self.pool = np.zeros((BLOCKS, KV_HEADS, BLOCK, 2 * DIM), np.float16)
        self.unused = list(range(BLOCKS))
        self.tables, self.lengths = {}, {}

    def reserve(self, sequence, new):
        """Returns slots for new tokens, in new blocks if the last one is full."""
        table, first = self.tables.setdefault(sequence, []), self.lengths.get(sequence, 0)
        self.lengths[sequence] = first + new
        while len(table) * BLOCK < self.lengths[sequence]:
            table.append(self.unused.pop())
        return [table[t // BLOCK] * BLOCK + t % BLOCK for t in range(first, first + new)]

    def batch(self, sequences):
        """Returns padded block tables and lengths."""
        padded = np.zeros((len(sequences), max(len(self.tables[s]) for s in sequences)), np.int32)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(self.tables[sequence])] = self.tables[sequence]
        return padded, [self.lengths[sequence] for sequence in sequences]

    def append(self, sequences, new):
        """Computes and stores keys and values of new tokens; a model would do the former."""
        slots = [slot for sequence in sequences for slot in self.reserve(sequence, new)]
        keys, values = uniform(2, KV_HEADS, len(slots), DIM)
        self.paged.write(keys, 0.3 + values, self.pool, slots)
        self.paged.append(sequences, self.pool, *self.batch(sequences))

    def share(self, sequence, new):
        """Starts a sequence with the full blocks of another one."""
        full = self.lengths[sequence] // BLOCK
        self.tables[new], self.lengths[new] = self.tables[sequence][:full], full * BLOCK
        self.paged.fork(sequence, new)
        self.paged.truncate([new], self.pool, *self.batch([new]))

    def end(self, sequence, shared=0):
        """Ends a sequence, whose first blocks another sequence shares."""
        self.paged.free(sequence)
        self.unused += self.tables.pop(sequence)[shared:]
        del self.lengths[sequence]

    def decode(self, sequences, steps):
        """Decodes tokens of each sequence, and prints the largest error."""
        errors, read = [], []
        for _ in range(steps):
            self.append(sequences, 1)
            queries = uniform(QUERY_HEADS, len(sequences), DIM)
            output = self.paged.attend(sequences, queries, self.pool, *self.batch(sequences))
            read.append(output.summary()["density"])
            for place, sequence in enumerate(sequences):
                exact = self.dense(sequence, queries[:, place])
                norms = np.linalg.norm(output.out[:, place] - exact, axis=-1)
                errors.append(max(norms / np.linalg.norm(exact, axis=-1)))
        print(f"sequences {sequences}: {np.mean(read):.1%} read, largest error {max(errors):.4f}")
        assert max(errors) <= 0.2

    def dense(self, sequence, query):
        """Returns attention over all tokens."""
        rows = self.pool[self.tables[sequence]].swapaxes(0, 1).reshape(KV_HEADS, -1, 2 * DIM)
        rows = rows[:, : self.lengths[sequence]].repeat(QUERY_HEADS // KV_HEADS, axis=0)
        keys, values = rows.astype(np.float64)[..., :DIM], rows.astype(np.float64)[..., DIM:]
        weights = np.exp(np.einsum("htd,hd->ht", keys, query) / np.sqrt(DIM))
        return np.einsum("ht,htd->hd", weights, values) / weights.sum(-1, keepdims=True)


PIPELINE = """
[[selectors]]
type = "sink"
size = 16

[[selectors]]
type = "window"
size = 64

[[selectors]]
type = "oracle-top-k"
size = 0.02

[estimator]
type = "ratio"
epsilon = 0.2
delta = 0.01
"""


def main():
    engine = Engine(Pipeline.parse(PIPELINE))
    engine.append([1], PROMPT)
    engine.share(1, 2)
    engine.append([2], 40)
    engine.decode([1, 2], steps=4)
    engine.end(2, shared=PROMPT // BLOCK)
    engine.append([3], PROMPT)
    engine.decode([3, 1], steps=4)


if __name__ == "__main__":
    main()
