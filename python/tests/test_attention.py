"""Tests of `Attention`: outputs, reports, copies and errors."""

import copy
import os
import pickle
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose
from shared import CONFIGS, DENSE, DIM, KV_HEADS, PROMISE, QUERY_HEADS, exact, filled, normal

from vattention import Attention, Pipeline, _vattention, append_batch, attend_batch

PIPELINE = Pipeline.parse(PROMISE)


def test_queries_read_visible_tokens_only():
    queries = normal(QUERY_HEADS, 3, DIM)
    output = filled().attend(queries, [10, 50, 100])
    for place, visible in enumerate([10, 50, 100]):
        alone = filled().attend(queries[:, place : place + 1], [visible])
        np.testing.assert_array_equal(output.out[:, place : place + 1], alone.out)
    assert [row["visible"] for row in output.rows[::QUERY_HEADS]] == [10, 50, 100]
    with pytest.raises(ValueError, match="visible: expected 3, one per query, got 1"):
        filled().attend(queries, [10])
    with pytest.raises(ValueError, match=r"visible\[0\]: expected 1 to 100"):
        filled().attend(queries[:, :1], [101])


def test_many_queries_equal_single_steps():
    """The call has more queries than are computed between two checks for Ctrl-C."""
    queries = normal(QUERY_HEADS, 70, DIM)
    output = filled(PIPELINE, 2000, return_selection=True, check=True).attend(queries)
    one_by_one = filled(PIPELINE, 2000, return_selection=True)
    parts = [one_by_one.attend(queries[:, place : place + 1]) for place in range(70)]
    np.testing.assert_array_equal(output.out, np.concatenate([part.out for part in parts], axis=1))
    assert len(output.rows) == 70 * QUERY_HEADS
    assert [row["query"] for row in output.rows] == [
        place for place in range(70) for _ in range(QUERY_HEADS)
    ]
    assert output.selection is not None
    indptr, indices, _ = output.selection
    part = parts[66].selection
    assert part is not None
    first = 66 * QUERY_HEADS
    np.testing.assert_array_equal(indices[indptr[first] : indptr[first + QUERY_HEADS]], part[1])


def test_reports():
    output = filled(PIPELINE, 4000, check=True).attend(normal(QUERY_HEADS, 20, DIM))
    summary = output.summary()
    rows = output.rows
    assert summary["rows"] == len(rows) == 20 * QUERY_HEADS
    assert summary["density"] == pytest.approx(
        np.mean([row["read_by_group"] / row["visible"] for row in rows])
    )
    assert 0 < summary["density"] < 1
    assert summary["kind"] == "asymptotic"
    for row in rows:
        assert row["read"] == row["certain"] + row["sampled"]
        assert row["promised"]
        assert row["bar"] is not None
        assert row["held"] == (row["bar"] <= 0.2)
        assert row["error"] is not None
        assert row["violated"] == (row["error"] > 0.2)
    assert summary["held"] == sum(row["held"] for row in rows)
    assert summary["largest_error"] == max(row["error"] for row in rows)
    assert summary["violations"] == sum(bool(row["violated"]) for row in rows)


def test_broken_promises_are_counted():
    """One token of 4000 has nearly all of the attention, and samples miss it."""
    keys, values = 0.1 * normal(KV_HEADS, 4000, DIM), 1 + normal(KV_HEADS, 4000, DIM)
    keys[:, 1234], values[:, 1234] = 5, 50
    blind = Pipeline.parse('[estimator]\ntype = "ratio"\nepsilon = 0.2\ndelta = 0.1\n')
    attention = Attention(blind, QUERY_HEADS, KV_HEADS, DIM, check=True, fall_back="never")
    attention.append(keys, values)
    output = attention.attend(np.ones((QUERY_HEADS, 3, DIM), np.float32))
    missed = [row for row in output.rows if row["error"] > 0.2]
    assert len(missed) > QUERY_HEADS
    assert all(row["violated"] for row in missed)
    summary = output.summary()
    assert summary["violations"] == len(missed)
    assert summary["violated_steps"] == len({row["query"] for row in missed})


def test_errors_are_those_of_the_output():
    queries = normal(QUERY_HEADS, 1, DIM)
    streaming = Pipeline.parse('[[selectors]]\ntype = "window"\nsize = 20\n')
    output = filled(streaming, fall_back="never", check=True).attend(queries)
    truth = exact(queries)[:, 0]
    expected = np.linalg.norm(output.out[:, 0] - truth, axis=-1) / np.linalg.norm(truth, axis=-1)
    assert_allclose([row["error"] for row in output.rows], expected, rtol=1e-4)
    assert min(expected) > 0.1
    assert output.rows[0]["violated"] is None, "nothing was promised"


def test_selection_has_indices_and_probabilities():
    output = filled(PIPELINE, 4000, return_selection=True).attend(normal(QUERY_HEADS, 1, DIM))
    assert output.selection is not None
    indptr, indices, probabilities = output.selection
    row = output.rows[0]
    first = indices[indptr[0] : indptr[1]]
    assert len(first) == row["read"]
    assert (np.diff(first.astype(np.int64)) > 0).all()
    assert (probabilities[indptr[0] : indptr[1]] == 1).sum() == row["certain"]
    assert set(range(8)) <= set(first.tolist()), "the sinks"
    assert filled(PIPELINE, 400).attend(normal(QUERY_HEADS, 1, DIM)).selection is None


def test_a_promise_of_nearly_nothing_is_dense():
    queries = normal(QUERY_HEADS, 4, DIM)
    tiny = PIPELINE.set("estimator.epsilon=1e-6")
    assert_allclose(filled(tiny).attend(queries).out, exact(queries), atol=1e-5)


def test_soft_caps_and_sinks_change_the_softmax():
    queries, sinks = normal(QUERY_HEADS, 3, DIM), [0.5, -1e4, 3.0, 6.0]
    found = filled(soft_cap=1.5, sink_logits=sinks).attend(queries)
    keys = normal(KV_HEADS, 100, DIM, seed=1).repeat(2, axis=0).astype(np.float64)
    values = 1 + normal(KV_HEADS, 100, DIM, seed=2).repeat(2, axis=0).astype(np.float64)
    logits = 1.5 * np.tanh(queries @ keys.transpose(0, 2, 1) / np.sqrt(DIM) / 1.5)
    denominator = np.exp(logits).sum(-1) + np.exp(np.array(sinks))[:, None]
    assert_allclose(found.out, np.exp(logits) @ values / denominator[..., None], atol=1e-5)
    assert_allclose(found.log_denominator, np.log(denominator), atol=1e-5)
    promised = filled(PIPELINE, 4000, soft_cap=1.5, sink_logits=np.array(sinks), check=True)
    assert promised.attend(queries).summary()["violations"] == 0
    for options, message in [
        ({"soft_cap": 0.0}, "soft_cap: expected a number from"),
        ({"sink_logits": [1.0]}, "sink_logits: expected 4 numbers, one for each query head, got 1"),
        ({"sink_logits": [np.inf] * 4}, r"sink_logits\[0\]: expected a finite number, got inf"),
    ]:
        with pytest.raises(ValueError, match=message):
            filled(**options)


def test_fork_and_truncate():
    queries = normal(QUERY_HEADS, 1, DIM)
    attention = filled()
    fork = attention.fork(1)
    fork.append(normal(KV_HEADS, 5, DIM), normal(KV_HEADS, 5, DIM))
    assert (len(attention), len(fork)) == (100, 105)
    assert_allclose(attention.attend(queries).out, exact(queries), atol=1e-5)
    assert abs(fork.attend(queries).out - exact(queries)).max() > 1e-3
    fork.truncate(100)
    assert_allclose(fork.attend(queries).out, exact(queries), atol=1e-5)
    with pytest.raises(
        ValueError, match=r"tokens to keep: expected at most 100 \(the tokens appended\), got 101"
    ):
        fork.truncate(101)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_continue_as_the_original_would(copied):
    attention, expected = filled(PIPELINE, 4000), filled(PIPELINE, 4000)
    queries = normal(QUERY_HEADS, 3, DIM)
    attention.attend(queries[:, :1])
    expected.attend(queries[:, :1])
    other = copied(attention)
    other.append(normal(KV_HEADS, 5, DIM), normal(KV_HEADS, 5, DIM))
    assert len(attention) == 4000
    found = copied(attention).attend(queries).out
    np.testing.assert_array_equal(found, expected.attend(queries).out)


def test_saving_is_refused_with_advice():
    with pytest.raises(TypeError, match=r"cannot be saved: .*fork\(\) or copy.deepcopy"):
        pickle.dumps(filled())


def test_forks_have_samples_of_their_own():
    attention = filled(PIPELINE, 4000)
    queries = normal(QUERY_HEADS, 1, DIM)
    same, other = attention.fork(), attention.fork(7)
    expected = attention.attend(queries).out
    np.testing.assert_array_equal(same.attend(queries).out, expected)
    assert (other.attend(queries).out != expected).any()


def test_truncation_is_refused_after_learning():
    learns = filled(Pipeline.load(CONFIGS / "h2o.toml"))
    with pytest.raises(RuntimeError, match="a selector learns from steps"):
        learns.truncate(50)


def test_fastgen_requires_token_classes():
    fastgen = Pipeline.parse("[[selectors]]\ntype = 'fastgen'\nrecover = 0.05\n")
    make = lambda: Attention(fastgen, QUERY_HEADS, KV_HEADS, DIM, return_selection=True)
    rows, queries = normal(KV_HEADS, 50, DIM), normal(QUERY_HEADS, 2, DIM)
    attention = make()
    with pytest.raises(ValueError, match="`fastgen` needs the class of each token"):
        attention.append(rows, rows)
    with pytest.raises(ValueError, match="classes: expected 50, one per token, got 49"):
        attention.append(rows, rows, [0] * 49)
    with pytest.raises(
        ValueError,
        match=r"classes\[1\]: expected 0 \(other\), 1 \(punctuation\) or 2 \(special\), got 3",
    ):
        attention.append(rows, rows, [0, 3] * 25)
    assert len(attention) == 0
    for number in 256, -1:
        with pytest.raises(ValueError, match=rf"classes\[0\]: expected 0 .*, got {number}"):
            attention.append(rows, rows, [number] * 50)
    classes = np.arange(50, dtype=np.uint8) % 3
    attention.append(rows, rows, classes)
    batch = [make(), make()]
    append_batch(batch, np.stack([rows, rows]), np.stack([rows, rows]), [classes, classes.tolist()])
    for sequence in [attention, *batch]:
        sequence.observe(queries)
        selection = sequence.attend(queries[:, :1]).selection
        assert selection is not None
        read = set(selection[1][: selection[0][1]].tolist())
        assert {token for token in range(50) if token % 3 == 2} <= read
        assert len(read) < 50


def test_batch():
    queries = normal(2, QUERY_HEADS, 2, DIM)
    keys = normal(2, KV_HEADS, 50, DIM, seed=3)
    batch = [
        Attention(PIPELINE, QUERY_HEADS, KV_HEADS, DIM, sequence=i, check=True) for i in range(2)
    ]
    append_batch(batch, keys, keys)
    outputs = attend_batch(batch, queries, [[49, 50], [25, 50]])
    for place, output in enumerate(outputs):
        alone = Attention(PIPELINE, QUERY_HEADS, KV_HEADS, DIM, sequence=place)
        alone.append(keys[place], keys[place])
        expected = alone.attend(queries[place], [[49, 50], [25, 50]][place])
        np.testing.assert_array_equal(output.out, expected.out)
        assert output.summary()["error"] is not None
    with pytest.raises(ValueError, match="queries: expected 2 sequences, one per Attention, got 1"):
        attend_batch(batch, queries[:1])
    with pytest.raises(RuntimeError, match="twice in one batch"):
        attend_batch([batch[0], batch[0]], queries)
    assert attend_batch([], np.zeros((0, QUERY_HEADS, 1, DIM), np.float32)) == []


def long_call() -> Attention:
    """Returns an `Attention` in which a call of 64 queries takes about a second."""
    attention = Attention(DENSE, 8, 8, 64, threads=1)
    tokens = normal(8, 20_000, 64)
    attention.append(tokens, tokens)
    return attention


def test_other_python_threads_keep_running():
    attention, queries = long_call(), normal(8, 64, 64)
    ticks = 0
    done = threading.Event()

    def tick():
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    counts = []
    # If a call holds the global interpreter lock, at most one tick passes in it. If not, few ticks
    # may pass as well, because the other thread may have to wait for a processor.
    while max(counts, default=0) < 5 and len(counts) < 100:
        before = ticks
        attention.attend(queries)
        counts.append(ticks - before)
    done.set()
    thread.join()
    assert max(counts) >= 5, counts


def test_concurrent_use_by_two_threads_is_refused():
    # The call takes ten seconds, within which the second thread begins.
    attention, queries = long_call(), normal(8, 640, 64)
    results: list[BaseException | None] = []
    start = threading.Barrier(2)

    def attend():
        start.wait()
        try:
            attention.attend(queries)
            results.append(None)
        except RuntimeError as error:
            results.append(error)

    threads = [threading.Thread(target=attend) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [error for error in results if error is not None]
    assert refused
    assert all("in use, by another thread" in str(error) for error in refused)
    assert len(attention.attend(queries[:, :1]).rows) == 8


def test_a_panic_is_an_exception_that_names_a_bug():
    with pytest.raises(
        BaseException, match="a bug in vattention, please report it: index out of bounds"
    ) as raised:
        _vattention.panic_for_test("index out of bounds")
    assert type(raised.value).__name__ == "PanicException"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_refused_and_does_not_hang():
    attention, queries = filled(), normal(QUERY_HEADS, 1, DIM)
    attention.attend(queries)
    child = os.fork()
    if child == 0:
        try:
            attention.attend(queries)
        except RuntimeError as error:
            os._exit(0 if "start method `spawn`" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
