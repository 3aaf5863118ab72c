"""Tests of selectors written in Python: composition with native parts, and errors."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from shared import DIM, KV_HEADS, QUERY_HEADS, filled, normal

import vattention
from vattention import Pipeline, PipelineError
from vattention.testing import laws


@vattention.selector("test-top")
class Top:
    """Selector of the tokens with the largest logits."""

    def __init__(self, size):
        self.size = size
        self.keys = None

    def append(self, keys):
        assert keys.dtype == np.float32
        self.keys = keys if self.keys is None else np.concatenate([self.keys, keys])

    def select(self, query, visible, taken):
        logits = self.keys[:visible] @ query
        logits[taken] = -np.inf
        return np.argsort(-logits, kind="stable")[: self.size]


class Broken(Top):
    """Selector whose methods tests replace."""

    def __init__(self, size=4):
        super().__init__(size)


vattention.selector("test-broken")(Broken)


def pipeline(name: str, settings: str = "", rest: str = "") -> Pipeline:
    return Pipeline.parse(f'[[selectors]]\ntype = "python"\nname = "{name}"\n{settings}\n{rest}')


OURS = pipeline("test-top", "settings = { size = 10 }")


def test_picks_equal_those_of_the_native_counterpart():
    native = Pipeline.parse('[[selectors]]\ntype = "oracle-top-k"\nsize = 10\n')
    queries = normal(QUERY_HEADS, 3, DIM)
    options = {"fall_back": "never", "return_selection": True}
    ours, expected = (filled(variant, 500, **options).attend(queries) for variant in (OURS, native))
    assert_array_equal(ours.selection[1], expected.selection[1])
    assert_array_equal(ours.out, expected.out)


def test_it_composes_with_native_parts():
    both = Pipeline.parse(
        '[[selectors]]\ntype = "window"\nsize = 20\n\n'
        '[[selectors]]\ntype = "python"\nname = "test-top"\nsettings = { size = 10 }\n\n'
        '[estimator]\ntype = "ratio"\nepsilon = 0.2\ndelta = 0.1\n'
    )
    output = filled(both, 4000).attend(normal(QUERY_HEADS, 1, DIM))
    assert all(row["certain"] >= 30 and row["sampled"] > 0 and row["held"] for row in output.rows)


def test_forks_copy_it():
    attention = filled(OURS, 200)
    fork = attention.fork()
    fork.append(normal(KV_HEADS, 50, DIM, seed=8), normal(KV_HEADS, 50, DIM, seed=8))
    queries = normal(QUERY_HEADS, 1, DIM)
    assert_array_equal(attention.attend(queries).out, filled(OURS, 200).attend(queries).out)
    assert len(fork.attend(queries).rows) == QUERY_HEADS


def test_it_obeys_the_laws():
    laws(OURS, cases=16)


@pytest.mark.parametrize(
    ("select", "law"),
    [
        (lambda self, query, visible, taken: np.random.randint(visible, size=5), "repeats"),
        (lambda self, query, visible, taken: [len(self.keys) // 2 % visible], "causal"),
    ],
)
def test_a_law_that_is_broken_is_named(monkeypatch, select, law):
    monkeypatch.setattr(Broken, "select", select)
    with pytest.raises(AssertionError, match=f"the law `{law}` is broken"):
        laws(pipeline("test-broken"), cases=16)


def test_laws_report_exceptions_of_the_selector(monkeypatch):
    def select(self, query, visible, taken):
        raise LookupError("not here")

    monkeypatch.setattr(Broken, "select", select)
    note = "raised by `select` of the python selector `test-broken`"
    with pytest.raises(AssertionError, match=f"LookupError: not here .{note}"):
        laws(pipeline("test-broken"), cases=4)


@pytest.mark.parametrize(
    ("picked", "error", "message"),
    [
        ([500], ValueError, "`test-broken`: select: expected tokens from 0 to 499, got 500"),
        ([-1], ValueError, "select: expected tokens from 0 to 499, got -1"),
        ([0.5], ValueError, "select: expected indices of tokens, got numbers of type float64"),
        ("abc", ValueError, "select: expected indices"),
    ],
)
def test_wrong_picks_are_refused(monkeypatch, picked, error, message):
    monkeypatch.setattr(Broken, "select", lambda *_: picked)
    with pytest.raises(error, match=message):
        filled(pipeline("test-broken"), 500).attend(normal(QUERY_HEADS, 1, DIM))


def test_exceptions_rpipelinethe_caller(monkeypatch):
    def select(self, query, visible, taken):
        raise LookupError("not here")

    attention = filled(pipeline("test-broken"), 500)
    monkeypatch.setattr(Broken, "select", select)
    with pytest.raises(LookupError, match="not here"):
        attention.attend(normal(QUERY_HEADS, 1, DIM))
    monkeypatch.undo()
    assert len(attention.attend(normal(QUERY_HEADS, 1, DIM)).rows) == QUERY_HEADS

    def append(self, keys):
        raise LookupError("nor here")

    monkeypatch.setattr(Broken, "append", append)
    with pytest.raises(LookupError, match="nor here"):
        attention.append(normal(KV_HEADS, 1, DIM), normal(KV_HEADS, 1, DIM))
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="the sequence cannot continue"):
        attention.attend(normal(QUERY_HEADS, 1, DIM))


@pytest.mark.parametrize("method", ["select", "append", "__deepcopy__"])
def test_exceptions_name_the_selector(monkeypatch, method):
    def fail(self, *_):
        raise LookupError("not here")

    attention = filled(pipeline("test-broken"), 500)
    monkeypatch.setattr(Broken, method, fail, raising=False)
    rows = normal(KV_HEADS, 1, DIM)
    calls = {
        "select": lambda: attention.attend(normal(QUERY_HEADS, 1, DIM)),
        "append": lambda: attention.append(rows, rows),
    }
    with pytest.raises(LookupError) as raised:
        calls.get(method, attention.fork)()
    assert raised.value.args == ("not here",)
    assert raised.value.__notes__ == [f"raised by `{method}` of the python selector `test-broken`"]


def test_names_and_settings_are_checked():
    with pytest.raises(
        PipelineError,
        match="python selector `nobody`: no class of that name; registered are .*test-top",
    ):
        pipeline("nobody")
    with pytest.raises(ValueError, match="python selector `test-top`: .*siz"):
        filled(pipeline("test-top", "settings = { siz = 10 }"))
