"""An engine with one layer and a pool, and the same sequences in the library's cache."""

import numpy as np
from shared import normal

from vattention import Attention, PagedAttention

QUERY_HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 32, 64
BLOCKS, BLOCK = 160, 16
SHAPE = (QUERY_HEADS, KV_HEADS, DIM, VALUE_DIM)
OPTIONS = {"layer": 3, "soft_cap": 20.0, "sink_logits": [0.5, -1.0, 2.0, 0.0], "fall_back": "never"}

# Pools of each layout, with NaN in rows that no token has.
POOLS = {
    "joined": lambda full: full(BLOCKS, KV_HEADS, BLOCK, DIM + VALUE_DIM),
    "separate": lambda full: (
        full(BLOCKS, KV_HEADS, BLOCK, DIM),
        full(BLOCKS, KV_HEADS, BLOCK, VALUE_DIM),
    ),
    "views of joined": lambda full: split(full(BLOCKS, KV_HEADS, BLOCK, DIM + VALUE_DIM)),
    "tokens first": lambda full: full(BLOCKS, BLOCK, KV_HEADS, DIM + VALUE_DIM).swapaxes(1, 2),
    "keys and values of a block": lambda full: split(
        full(BLOCKS, KV_HEADS, 2 * BLOCK, VALUE_DIM).reshape(BLOCKS, KV_HEADS, BLOCK, 2 * VALUE_DIM)
    ),
    "blocks of one row": lambda full: (
        full(BLOCKS * BLOCK, KV_HEADS, DIM)[:, :, None],
        full(BLOCKS * BLOCK, KV_HEADS, VALUE_DIM)[:, :, None],
    ),
}


def split(pool):
    return pool[..., :DIM], pool[..., -VALUE_DIM:]


def nan_pool(layout="joined", dtype=np.float32, times=1):
    """Returns a pool of `times` as many blocks as usual."""
    return POOLS[layout](lambda first, *shape: np.full((times * first, *shape), np.nan, dtype))


class Engine:
    """Sequences whose rows are in a pool, and an `Attention` for each."""

    def __init__(self, pipeline, pool=None, storage="f32", **options):
        self.pool = nan_pool() if pool is None else pool
        keys = self.pool[0] if isinstance(self.pool, tuple) else self.pool
        self.block = keys.shape[2]
        self.unused = np.random.default_rng(5).permutation(len(keys)).tolist()
        self.tables, self.lengths, self.attentions = {}, {}, {}
        self.paged = PagedAttention(pipeline, *SHAPE, **OPTIONS, **options)
        self.attention = lambda sequence: Attention(
            pipeline, *SHAPE, **OPTIONS, sequence=sequence, storage=storage
        )
        self.seed = 0

    def numbers(self, *shape):
        self.seed += 1
        return normal(*shape, seed=self.seed)

    def batch(self, sequences):
        """Block tables, padded with -1, and lengths."""
        blocks = max(len(self.tables[sequence]) for sequence in sequences)
        padded = np.full((len(sequences), blocks), -1, np.int32)
        for row, sequence in zip(padded, sequences, strict=True):
            row[: len(self.tables[sequence])] = self.tables[sequence]
        return padded, np.array([self.lengths[sequence] for sequence in sequences])

    def reserve(self, sequence, new):
        """Gives new tokens blocks, and returns their slots."""
        table = self.tables.setdefault(sequence, [])
        first = self.lengths.get(sequence, 0)
        while len(table) * self.block < first + new:
            table.append(self.unused.pop())
        self.lengths[sequence] = first + new
        tokens = range(first, first + new)
        return [table[t // self.block] * self.block + t % self.block for t in tokens]

    def store(self, sequence, new):
        """Stores new tokens in the pool and in the library's cache."""
        keys, values = self.numbers(KV_HEADS, new, DIM), 1 + self.numbers(KV_HEADS, new, VALUE_DIM)
        self.paged.write(keys, values, self.pool, self.reserve(sequence, new))
        if sequence not in self.attentions:
            self.attentions[sequence] = self.attention(sequence)
        self.attentions[sequence].append(keys, values, classes(new))

    def append(self, new):
        """Stores and indexes tokens: a number for each sequence."""
        for sequence, count in new.items():
            self.store(sequence, count)
        sequences = list(new)
        batch = self.batch(sequences)
        self.paged.append(sequences, self.pool, *batch, [classes(count) for count in new.values()])

    def observe(self, sequence):
        queries = self.numbers(QUERY_HEADS, 40, DIM)
        table, length = self.tables[sequence], self.lengths[sequence]
        self.paged.observe(sequence, queries, self.pool, table, length)
        self.attentions[sequence].observe(queries)

    def attend(self, sequences):
        """Runs a step of each sequence, compares outputs and reports, and returns the output."""
        queries = 2 * self.numbers(QUERY_HEADS, len(sequences), DIM)
        output = self.paged.attend(sequences, queries, self.pool, *self.batch(sequences))
        for place, sequence in enumerate(sequences):
            expected = self.attentions[sequence].attend(queries[:, place : place + 1])
            compare(output, place, expected)
        return output

    def fork(self, sequence, new):
        """Forks a sequence: full blocks are shared, and the last one is copied."""
        self.paged.fork(sequence, new)
        self.attentions[new] = self.attentions[sequence].fork(new)
        table, self.lengths[new] = list(self.tables[sequence]), self.lengths[sequence]
        if self.lengths[new] % self.block:
            copy = self.unused.pop()
            for rows in self.pool if isinstance(self.pool, tuple) else [self.pool]:
                rows[copy] = rows[table[-1]]
            table[-1] = copy
        self.tables[new] = table

    def share_blocks(self, sequence, new, blocks):
        """Starts a sequence that begins with the rows in the first blocks of another one."""
        self.tables[new] = self.tables[sequence][:blocks]
        self.lengths[new] = blocks * self.block
        self.attentions[new] = self.attention(new)
        rows = self.pool[self.tables[new]].swapaxes(0, 1)
        rows = rows.reshape(KV_HEADS, self.lengths[new], -1)
        self.attentions[new].append(rows[..., :DIM], rows[..., DIM:], classes(self.lengths[new]))
        self.paged.append([new], self.pool, *self.batch([new]))

    def free(self, sequence):
        """Frees a sequence that shares no blocks. Their rows become NaN."""
        self.paged.free(sequence)
        del self.attentions[sequence], self.lengths[sequence]
        for block in self.tables.pop(sequence):
            for rows in self.pool if isinstance(self.pool, tuple) else [self.pool]:
                rows[block] = np.nan
            self.unused.append(block)


def classes(new):
    return [token % 3 for token in range(new)]


def compare(output, place, expected):
    """Compares the query at a position of a batch with that of a single sequence, bit for bit."""
    np.testing.assert_array_equal(output.out[:, place], expected.out[:, 0])
    np.testing.assert_array_equal(output.log_denominator[:, place], expected.log_denominator[:, 0])
    rows = output.rows[place * QUERY_HEADS : (place + 1) * QUERY_HEADS]
    assert [row | {"query": 0} for row in rows] == expected.rows
    assert all(row["query"] == place for row in rows)
