"""Tests that misuse of `PagedAttention` raises exceptions that name the argument."""

import numpy as np
import pytest
from shared import DENSE, normal
from toy_engine import BLOCK, BLOCKS, DIM, KV_HEADS, QUERY_HEADS, SHAPE, VALUE_DIM, Engine

import vattention
from vattention import PagedAttention, Pipeline

TABLES = np.array([[4, 5], [6, -1]], np.int32)
QUERIES = normal(QUERY_HEADS, 2, DIM)


@pytest.fixture
def engine():
    """Sequence 7 has 20 tokens in blocks 4 and 5, sequence 2 has 10 in block 6."""
    engine = Engine(DENSE)
    engine.pool[:] = 1
    engine.paged.append([7, 2], engine.pool, TABLES, [20, 10])
    return engine


def refuse(message, call, *arguments, error=ValueError):
    with pytest.raises(error, match=message):
        call(*arguments)


@pytest.mark.parametrize(
    ("tables", "lengths", "message"),
    [
        ([[4, 160], [6, 0]], [20, 10], r"block_tables\[0\]\[1\]: expected a block .* has 160, got"),
        ([[4, 5], [-1, 6]], [20, 10], r"block_tables\[1\]\[0\]: expected a block .*, got -1"),
        (TABLES, [20, 33], r"lengths\[1\]: expected 0 to 32 \(a table of 2 blocks of 16 rows\)"),
        (TABLES, [-1, 10], r"lengths\[0\]: expected 0 to 32 .*, got -1"),
        (TABLES, [20, 11], r"lengths\[1\]: expected 10, the tokens appended to sequence 2, got 11"),
        (TABLES, [20], "lengths: expected 2, one per sequence, got 1"),
        (TABLES[:1], [20, 10], "block_tables: expected 2, one per sequence, got 1"),
        (TABLES[0], [20, 10], r"block_tables: expected shape \[sequences, blocks\], got \[2\]"),
    ],
)
def test_tables_and_lengths(engine, tables, lengths, message):
    refuse(message, engine.paged.attend, [7, 2], QUERIES, engine.pool, tables, lengths)
    output = engine.paged.attend([7, 2], QUERIES, engine.pool, TABLES, [20, 10])
    assert np.isfinite(output.out).all()


def test_types_of_integers(engine):
    append, pool = engine.paged.append, engine.pool
    expected = ": expected int32, int64 or uint32, got "
    floats = TABLES.astype(np.float32)
    refuse("block_tables" + expected, append, [7, 2], pool, floats, [20, 10], error=TypeError)
    refuse("lengths" + expected, append, [7, 2], pool, TABLES, [20.0, 10.0], error=TypeError)
    refuse("sequences" + expected, append, [True, False], pool, TABLES, [20, 10], error=TypeError)


def test_sequences(engine):
    paged, pool = engine.paged, engine.pool
    for sequences, message in (
        ([7, 3], "sequence 3 is unknown"),
        ([7, 7], r"sequences\[1\]: expected each sequence once, got 7 again"),
        ([7, -1], r"sequences\[1\]: expected 0 to 4294967295, got -1"),
    ):
        refuse(message, paged.attend, sequences, QUERIES, pool, TABLES, [20, 10])
    refuse("new: expected a sequence that does not exist, got 2", paged.fork, 7, 2)
    refuse("sequence 3 is unknown", paged.fork, 3, 4)
    refuse("sequence 3 is unknown", paged.free, 3)
    refuse("sequence 3 is unknown", paged.observe, 3, QUERIES, pool, [4], 5)
    refuse("sequence 3 is unknown", paged.truncate, [3], pool, [[4]], [5])
    assert paged.lengths == {2: 10, 7: 20}


def test_appended_rows(engine):
    """A refused batch leaves all sequences as they were, and starts none."""
    paged, pool = engine.paged, engine.pool
    fewer = r"lengths\[1\]: expected at least 20, the tokens appended to sequence 7, got 19"
    refuse(fewer, paged.append, [3, 7], pool, TABLES[::-1], [10, 19])
    pool[5, 1, 9, DIM + 3] = np.nan
    unfit = r"sequence 7, KV head 1: values\[25, 3\] is NaN"
    refuse(unfit, paged.append, [3, 7], pool, TABLES[::-1], [10, 30])
    assert paged.lengths == {2: 10, 7: 20}
    paged.append([3, 7], pool, TABLES[::-1], [10, 25])
    assert paged.lengths == {2: 10, 3: 10, 7: 25}


def test_queries(engine):
    infinite = QUERIES.copy()
    infinite[3, 1, 5] = np.inf
    for queries, error, message in (
        (QUERIES[:3], ValueError, r"queries: expected \[4, 2, 32\], got \[3, 2, 32\]"),
        (QUERIES[:, :1], ValueError, r"queries: expected \[4, 2, 32\], got \[4, 1, 32\]"),
        (QUERIES.astype(np.float64), TypeError, "queries: expected float32, float16"),
        (infinite, ValueError, r"sequence 2, KV head 1: queries\[1, 0, 5\] is inf"),
    ):
        arguments = [[7, 2], queries, engine.pool, TABLES, [20, 10]]
        refuse(message, engine.paged.attend, *arguments, error=error)


def test_a_refused_batch_makes_no_step():
    """Samples depend on the number of the step, so the results of the next step would differ."""
    engine = Engine(Pipeline.load("priority"))
    engine.append({7: 300, 2: 300})
    queries = normal(QUERY_HEADS, 2, DIM)
    queries[3, 1, 5] = np.inf
    batch = [engine.pool, *engine.batch([7, 2])]
    refuse("sequence 2, KV head 1", engine.paged.attend, [7, 2], queries, *batch)
    engine.paged.append([5], engine.pool, [[0]], [0])
    tables, lengths = engine.batch([7, 2])
    lengths[1] = 0
    message = "sequence 5, KV head 0: tokens: expected at least 1 before a query"
    refuse(message, engine.paged.attend, [7, 5], QUERIES, engine.pool, tables, lengths)
    engine.attend([7, 2])


def test_observed_queries(engine):
    many = normal(QUERY_HEADS, 21, DIM)
    for queries, table, length, message in (
        (QUERIES[..., 1:], [4, 5], 20, r"queries: expected \[4, 2, 32\], got \[4, 2, 31\]"),
        (QUERIES, [4, 5], 19, "length: expected 20, the tokens appended to sequence 7, got 19"),
        (QUERIES, [4, 5], 33, "length: expected 0 to 32"),
        (QUERIES, [4, 999], 20, r"block_table\[1\]: expected a block"),
        (many, [4, 5], 20, "sequence 7, KV head 0: prompt queries: expected at most 20"),
    ):
        refuse(message, engine.paged.observe, 7, queries, engine.pool, table, length)


@pytest.mark.parametrize(
    ("pool", "error", "message"),
    [
        (np.ones((9, KV_HEADS, BLOCK, 95), np.float32), ValueError, r"\[9, 2, 16, 96\], which is"),
        (np.ones((9, 3, BLOCK, 96), np.float32), ValueError, r"got \[9, 3, 16, 96\]"),
        (np.ones((9, KV_HEADS, 0, 96), np.float32), ValueError, "at least 1 row in a block"),
        (np.ones((9, 96), np.float32), ValueError, r"pool: expected shape \[blocks, kv_heads, blo"),
        (np.ones((9, KV_HEADS, BLOCK, 96)), TypeError, "pool: .*, got float64"),
        (np.ones((9, KV_HEADS, 96, BLOCK), np.float32).swapaxes(2, 3), ValueError, "side by side"),
        (np.ones((BLOCK, KV_HEADS, 9, 96), np.float32).swapaxes(0, 2), ValueError, "interleaved"),
        (np.ones((9, KV_HEADS, BLOCK, 96), np.float32)[::-1], ValueError, "strides of"),
        ((np.ones(3),) * 3, ValueError, "a tuple of keys and values, got a tuple of 3"),
    ],
)
def test_pools(engine, pool, error, message):
    refuse(message, engine.paged.append, [3], pool, [[1, 2]], [20], error=error)


def test_pools_of_keys_and_values(engine):
    keys = np.ones((9, KV_HEADS, BLOCK, DIM), np.float32)
    values = np.ones((9, KV_HEADS, BLOCK, VALUE_DIM), np.float32)
    half, double = values.astype(np.float16), values.astype(np.float64)
    blocks = r"pool\[1\]: expected 9 blocks of 16 rows, as in pool\[0\], got 8 of 16"
    for pool, error, message in (
        ((keys, double), TypeError, r"pool\[1\]: expected float32.* got float64"),
        ((keys, half), TypeError, r"pool\[1\]: expected f32, the type of pool\[0\], got f16"),
        ((keys, values[:8]), ValueError, blocks),
        ((values, keys), ValueError, r"pool\[0\]: expected \[9, 2, 16, 32\]"),
    ):
        refuse(message, engine.paged.append, [3], pool, [[1, 2]], [20], error=error)


def test_written_rows(engine):
    pool, half, slots = engine.pool, engine.pool.astype(np.float16), BLOCKS * BLOCK
    before = pool.copy()
    keys, values = normal(KV_HEADS, 2, DIM), normal(KV_HEADS, 2, VALUE_DIM)
    bad = values.copy()
    bad[1, 0, 9] = np.nan
    message = rf"slot_mapping\[1\]: expected a slot of the pool, which has {slots}, or -1, got "
    for arguments, part in (
        ((keys, values, pool, [0, -2]), message + "-2"),
        ((keys, values, pool, [0, slots]), message + str(slots)),
        ((keys, values, pool, [0]), r"keys: expected \[2, 1, 32\], a row for each slot"),
        ((keys, values[..., 1:], pool, [0, 1]), r"values: expected \[2, 2, 64\]"),
        ((keys, bad, pool, [0, 1]), r"values\[1, 0, 9\] is NaN"),
        ((keys * 0 + 1e5, values, half, [0, 1]), r"keys\[0, 0, 0\] is 1e5: .* at most 6.55"),
    ):
        refuse(part, engine.paged.write, *arguments)
    pool.flags.writeable = False
    part = "pool: expected memory to write to, got a read-only array"
    refuse(part, engine.paged.write, keys, values, pool, [0, 1])
    np.testing.assert_array_equal(pool, before)


def test_prompts():
    paged = PagedAttention(Pipeline.load("snapkv"), *SHAPE)
    pool = np.ones((4, KV_HEADS, BLOCK, DIM + VALUE_DIM), np.float32)
    paged.append([7, 2], pool, [[0], [1]], [9, 9])
    paged.observe(7, QUERIES, pool, [0], 9)
    batch = [pool, [[0], [1]], [9, 9]]
    message = "sequence 2, KV head 0: `snapkv` learns from the last queries"
    refuse(message, paged.attend, [7, 2], QUERIES, *batch, error=RuntimeError)
    message = "since the last observed prompt"
    refuse(message, paged.truncate, [7], pool, [[0]], [5])
    h2o = PagedAttention(Pipeline.load("h2o"), *SHAPE)
    h2o.append([7], pool, [[0]], [9])
    refuse("`h2o` cannot remove tokens", h2o.truncate, [7], pool, [[0]], [5])


def test_classes():
    paged = PagedAttention(Pipeline.load("fastgen"), *SHAPE)
    pool = np.ones((4, KV_HEADS, BLOCK, DIM + VALUE_DIM), np.float32)
    for classes, message in (
        (None, "`fastgen` needs the class of each token"),
        ([[0, 1]], "classes: expected 3, one per token, got 2"),
        ([[0] * 3] * 2, "classes: expected 1, one per sequence, got 2"),
        ([[0, 3, 0]], r"classes\[1\]: expected 0 \(other\)"),
    ):
        refuse(message, paged.append, [7], pool, [[0]], [3], classes)
    assert paged.lengths == {}


@vattention.selector("fails-after-20")
class FailsAfter20:
    """Selector that refuses a token with the index 20."""

    def __init__(self):
        self.tokens = 0

    def append(self, keys):
        self.tokens += len(keys)
        if self.tokens > 20:
            raise KeyError("too many")

    def select(self, query, visible, taken):
        return range(visible)


def test_an_exception_of_a_selector_in_python():
    """The sequences of the call cannot continue, and their numbers can be used again."""
    python = Pipeline.parse('[[selectors]]\ntype = "python"\nname = "fails-after-20"\n')
    paged = PagedAttention(python, *SHAPE)
    pool = np.ones((9, KV_HEADS, BLOCK, DIM + VALUE_DIM), np.float32)
    paged.append([7], pool, TABLES[:1], [20])
    refuse("too many", paged.append, [7, 2], pool, TABLES, [21, 10], error=KeyError)
    message = "the sequence cannot continue"
    refuse(message, paged.append, [7], pool, TABLES[:1], [21], error=RuntimeError)
    for sequence in (7, 2):
        paged.free(sequence)
    paged.append([7, 2], pool, TABLES, [20, 10])
    output = paged.attend([7, 2], QUERIES, pool, TABLES, [20, 10])
    np.testing.assert_allclose(output.out, 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((4, 2, 16), {}, "head_dim: expected a multiple of 32, got 16"),
        ((4, 2, 32, 48), {}, "value_dim: expected a multiple of 32, got 48"),
        ((5, 2, 32), {}, "query_heads"),
        ((4, 0, 32), {}, "kv_heads"),
        ((4, 2, 32), {"fall_back": "maybe"}, "fall_back"),
        ((4, 2, 32), {"scale": float("nan")}, "scale: expected a finite number"),
        ((4, 2, 32), {"sink_logits": [1.0]}, "sink"),
        ((4, 2, 32), {"threads": 0}, "threads: expected at least 1"),
    ],
)
def test_options(arguments, options, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        PagedAttention(DENSE, *arguments, **options)


def test_promises_about_unrounded_rows():
    text = 'extends = "vattention-oracle"\nestimator.reference = "unrounded"'
    refuse("leave out `reference`", PagedAttention, Pipeline.parse(text), *SHAPE)
