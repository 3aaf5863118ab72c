"""Tests of `PagedAttention`: results, shared and recycled blocks, threads."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from shared import DENSE, normal
from test_pages import blocks
from toy_engine import (
    BLOCK,
    DIM,
    KV_HEADS,
    OPTIONS,
    POOLS,
    QUERY_HEADS,
    SHAPE,
    VALUE_DIM,
    Engine,
    compare,
    nan_pool,
)

import vattention
from vattention import Attention, PagedAttention, Pipeline

PRIORITY = Pipeline.load("priority")
QUEST, HASHES, SPARQ = map(Pipeline.load, ["quest", "hash-hyperplanes", "sparq"])
ORACLE = Pipeline.load("vattention-oracle", "selectors.0.size=8", "estimator.epsilon=0.5")

# Pipelines with all needs: none, feedback, a prompt, and a prompt with classes.
NAMES = ["dense", "priority", "quest", "pq-cache", "h2o", "snapkv"]
FASTGEN = Pipeline.load("fastgen", "selectors.0.recover=0.05")
PIPELINES = [ORACLE, FASTGEN, *map(Pipeline.load, NAMES)]


def decode(engine):
    """Appends prompts of three sequences, and decodes them in changing batches."""
    engine.append({7: 300, 2: 33})
    engine.append({2: 400, 9: 97})
    for sequence in (7, 2, 9):
        engine.observe(sequence)
    outputs = [engine.attend([9, 7, 2])]
    for sequences in ([7, 2, 9], [2], [9, 2]):
        engine.append(dict.fromkeys(sequences, 1))
        outputs.append(engine.attend(sequences))
    return outputs


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
def test_results_equal_those_of_the_librarys_cache(pipeline):
    engine = Engine(pipeline)
    outputs = decode(engine)
    assert engine.paged.lengths == {2: 436, 7: 301, 9: 99}
    assert outputs[0].out.shape == (QUERY_HEADS, 3, VALUE_DIM)
    assert any(row["read"] < row["visible"] for row in outputs[0].rows) != pipeline.is_dense
    if pipeline.promise and not pipeline.is_dense:
        assert outputs[0].summary()["sampled"] > 0
        assert outputs[0].summary()["promised"] == 3 * QUERY_HEADS


@pytest.mark.parametrize("layout", POOLS)
@pytest.mark.parametrize(("storage", "dtype"), [("f32", np.float32), ("f16", np.float16)])
def test_layouts_of_a_pool(layout, storage, dtype):
    decode(Engine(ORACLE, nan_pool(layout, dtype), storage))


@pytest.mark.parametrize("layout", ["joined", "separate"])
def test_pools_of_torch(layout):
    torch = pytest.importorskip("torch")
    pool = POOLS[layout](lambda *shape: torch.full(shape, float("nan"), dtype=torch.bfloat16))
    decode(Engine(PRIORITY, pool, "bf16"))


def test_lists_and_tensors_of_integers():
    torch = pytest.importorskip("torch")
    engine = Engine(DENSE)
    engine.append({7: 20, 2: 40})
    tables, lengths = engine.batch([2, 7])
    queries = normal(QUERY_HEADS, 2, DIM)
    expected = engine.paged.attend([2, 7], queries, engine.pool, tables, lengths).out
    for integers in (np.uint32, np.int64):
        tables = np.where(tables < 0, 0, tables).astype(integers)
        output = engine.paged.attend([2, 7], queries, engine.pool, tables, lengths.tolist())
        np.testing.assert_array_equal(output.out, expected)
    tensors = [torch.tensor([2, 7]), torch.from_numpy(tables), torch.from_numpy(lengths).int()]
    output = engine.paged.attend(tensors[0], queries, engine.pool, *tensors[1:])
    np.testing.assert_array_equal(output.out, expected)


@pytest.mark.parametrize("pipeline", [PRIORITY, ORACLE])
@pytest.mark.parametrize("layout", ["joined", "separate"])
def test_forks_share_blocks(pipeline, layout):
    engine = Engine(pipeline, nan_pool(layout))
    engine.append({7: 20 * BLOCK + 5})
    engine.attend([7])
    engine.fork(7, 8)
    shared = set(engine.tables[7]) & set(engine.tables[8])
    assert len(shared) == 20
    for _ in range(2):
        engine.append({8: 30, 7: 1})
        engine.attend([7, 8])


@pytest.mark.parametrize("pipeline", [PRIORITY, QUEST, HASHES, SPARQ], ids=lambda p: p.name)
@pytest.mark.parametrize("share_index", [False, True])
def test_a_prefix_in_shared_blocks(pipeline, share_index):
    """Results do not depend on `share_index`, which saves half of a sequence's index or more."""
    engine = Engine(pipeline, nan_pool(times=2), share_index=share_index)
    engine.append({7: 1500})
    engine.attend([7])
    index_bytes = engine.paged.index_bytes
    engine.share_blocks(7, 8, 70)
    engine.append({8: 150})
    assert engine.lengths[8] == 70 * BLOCK + 150
    saved = 2 * index_bytes - engine.paged.index_bytes
    assert (saved >= 0.5 * index_bytes) == share_index
    engine.attend([8, 7])
    engine.append({7: 30, 8: 1})
    engine.attend([7, 8])
    engine.paged.free(7)
    engine.append({8: 80})
    engine.attend([8])


def test_only_equal_rows_are_shared():
    """Recycled blocks have other rows than those that were indexed."""
    engine = Engine(PRIORITY, nan_pool(times=2), share_index=True)
    engine.append({7: 1500})
    table = engine.tables[7]
    engine.pool[table[40:]] = normal(len(table) - 40, KV_HEADS, BLOCK, DIM + VALUE_DIM)
    engine.share_blocks(7, 8, 90)
    engine.append({8: 1})
    engine.attend([8])


@pytest.mark.parametrize("name", ["pq-cache", "h2o", "snapkv", "tactic", "socket"])
def test_an_index_of_one_sequence_is_not_shared(name):
    with pytest.raises(ValueError, match=f"`{name}` .*its own sequence"):
        PagedAttention(Pipeline.load(name), *SHAPE, share_index=True)


def test_blocks_are_recycled():
    """Freed blocks have new rows of other sequences, one of which has a number again."""
    engine = Engine(PRIORITY)
    engine.append({7: 500, 2: 300})
    engine.attend([7, 2])
    recycled = set(engine.tables[7])
    engine.free(7)
    assert engine.paged.lengths == {2: 300}
    engine.append({3: 250, 7: 200})
    assert recycled & set(engine.tables[3])
    assert recycled & set(engine.tables[7])
    engine.append({2: 1, 3: 1, 7: 1})
    engine.attend([7, 2, 3])


def test_truncation():
    """A truncated sequence is one that never had the tokens."""
    engine, short = Engine(PRIORITY), Attention(PRIORITY, *SHAPE, **OPTIONS, sequence=7)
    engine.append({7: 400})
    index_bytes = engine.paged.index_bytes
    engine.append({7: 100, 2: 50})
    engine.lengths[7] = 400
    assert engine.paged.can_truncate
    engine.paged.truncate([7], engine.pool, *engine.batch([7]))
    assert engine.paged.lengths == {2: 50, 7: 400}
    engine.paged.free(2)
    assert engine.paged.index_bytes == index_bytes
    rows = engine.pool[engine.tables[7][: 400 // BLOCK]].swapaxes(0, 1).reshape(KV_HEADS, 400, -1)
    short.append(rows[..., :DIM], rows[..., DIM:])
    queries = normal(QUERY_HEADS, 1, DIM)
    output = engine.paged.attend([7], queries, engine.pool, *engine.batch([7]))
    compare(output, 0, short.attend(queries))


def test_rows_without_a_slot_are_skipped():
    engine = Engine(DENSE)
    before = engine.pool.copy()
    keys, values = normal(KV_HEADS, 3, DIM), normal(KV_HEADS, 3, VALUE_DIM)
    keys[:, 1] = np.nan
    engine.paged.write(keys, values, engine.pool, [2 * BLOCK + 3, -1, 5])
    before[2, :, 3] = np.concatenate([keys[:, 0], values[:, 0]], axis=-1)
    before[0, :, 5] = np.concatenate([keys[:, 2], values[:, 2]], axis=-1)
    np.testing.assert_array_equal(engine.pool, before)


def test_needs():
    needs = {}
    for name in ("dense", "snapkv", "fastgen", "h2o"):
        paged = PagedAttention(Pipeline.load(name), *SHAPE)
        needs[name] = (paged.needs_classes, paged.needs_observe, paged.can_truncate)
    assert needs["dense"] == (False, False, True)
    assert needs["snapkv"][:2] == (False, True)
    assert needs["fastgen"][:2] == (True, True)
    assert needs["h2o"] == (False, False, False)


def test_an_empty_batch():
    engine = Engine(DENSE)
    nothing = np.zeros((0, 4), np.int32)
    engine.paged.append([], engine.pool, nothing, [])
    output = engine.paged.attend([], normal(QUERY_HEADS, 0, DIM), engine.pool, nothing, [])
    assert output.out.shape == (QUERY_HEADS, 0, VALUE_DIM)


def long_call():
    """Returns an object, and a call of a batch that takes a large part of a second."""
    paged = PagedAttention(DENSE, 32, 8, 64, threads=1)
    pool = normal(64, 8, 256, 128)
    paged.append([1], pool, np.arange(64)[None], [64 * 256])
    for sequence in range(2, 9):
        paged.fork(1, sequence)
    sequences, tables = np.arange(1, 9), np.tile(np.arange(64), (8, 1))
    queries = normal(32, 8, 64)
    return paged, lambda: paged.attend(sequences, queries, pool, tables, np.full(8, 64 * 256))


def test_other_python_threads_keep_running():
    (_, call), ticks, done = long_call(), 0, threading.Event()

    def tick():
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    counts = []
    # If a call holds the interpreter's lock, at most one tick passes in it.
    while max(counts, default=0) < 5 and len(counts) < 100:
        before = ticks
        call()
        counts.append(ticks - before)
    done.set()
    thread.join()
    assert max(counts) >= 5, counts


def test_concurrent_use_by_two_threads_is_refused():
    (paged, call), refused = long_call(), []
    for _ in range(100):
        thread = threading.Thread(target=call)
        thread.start()
        while thread.is_alive() and not refused:
            try:
                assert len(paged.lengths) == 8
            except RuntimeError as error:
                refused.append(str(error))
        thread.join()
        if refused:
            break
    assert "this PagedAttention is in use by another thread" in refused[0]
    assert len(paged.lengths) == 8


def test_the_examples_in_embedding_md_run():
    """The page shows a sequence in the library's cache, and the same one in a pool."""
    step = SimpleNamespace(keys=normal(8, 1, 128, seed=3), values=normal(8, 1, 128, seed=4))
    step.queries, step.slots = normal(32, 1, 128, seed=5), [40]
    step.sequences, step.block_tables, step.lengths = [7], np.arange(8)[None], [41]
    names = {
        "vattention": vattention,
        "layer": 3,
        "keys": normal(8, 40, 128, seed=1),
        "values": normal(8, 40, 128, seed=2),
        "last_queries": normal(32, 10, 128, seed=6),
        "pool": np.zeros((8, 8, 16, 256), np.float32),
        "prompt": 40,
        "prompt_slots": np.arange(40),
        "block_table": np.arange(8),
        "engine": SimpleNamespace(steps=lambda: [step]),
        "key": step.keys,
        "value": step.values,
        "query": step.queries,
    }
    cache, pages = blocks("docs/embedding.md")
    exec(cache.replace("while True", "for _ in [0]").replace("bf16", "f32"), names)
    expected = names["output"].out
    exec(pages, names)
    np.testing.assert_array_equal(names["output"].out, expected)
