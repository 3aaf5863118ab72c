"""Tests of `Pipeline`: reading, changing, checking and saving, and the messages of errors."""

import copy
import pickle

import pytest
from shared import CONFIGS, PROMISE

from vattention import Attention, Pipeline, PipelineError


def test_every_shipped_file_loads_and_round_trips():
    files = sorted(CONFIGS.glob("*.toml"))
    assert len(files) > 30
    for file in files:
        pipeline = Pipeline.load(file)
        assert Pipeline.parse(pipeline.to_toml(), name=str(file)).to_toml() == pipeline.to_toml()


def test_promise():
    promise = Pipeline.parse(PROMISE).promise
    assert promise is not None
    assert (promise["epsilon"], promise["delta"], promise["target"]) == (0.2, 0.1, "sdpa")
    assert Pipeline.parse("").promise is None
    assert Pipeline.parse("").is_dense


def test_changes_add_up():
    changed = Pipeline.load(CONFIGS / "priority.toml", "estimator.epsilon=0.3").set(
        "estimator.delta=0.2"
    )
    promise = changed.set().promise
    assert promise is not None
    assert (promise["epsilon"], promise["delta"]) == (0.3, 0.2)


def test_every_problem_has_its_place():
    text = (
        '[[selectors]]\ntype = "sinkk"\n\n[estimator]\ntype = "ratio"\nepsilon = 2\ndelta = 0.1\n'
    )
    with pytest.raises(PipelineError) as raised:
        Pipeline.parse(text, name="mine.toml")
    problems = raised.value.problems
    places = [(problem["file"], problem["line"]) for problem in problems]
    assert places == [("mine.toml", 2), ("mine.toml", 6)]
    assert "sink" in str(problems[0]["help"])
    assert "mine.toml:2:8: " in str(raised.value)
    assert isinstance(raised.value, ValueError)


def test_built_in_pipelines_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {"priority", "dense", "quest"} <= set(Pipeline.names())
    for name in ("priority", "pyramid-kv", "dense"):
        assert Pipeline.load(name).to_toml() == Pipeline.load(CONFIGS / f"{name}.toml").to_toml()
    changed = Pipeline.load("priority", "estimator.epsilon=0.3").set("estimator.delta=0.2").promise
    assert changed is not None and changed["epsilon"] == 0.3
    extended = Pipeline.parse('extends = "priority"\nseed = 3\n')
    assert extended.promise == Pipeline.load("priority").promise
    expected = "priorty: cannot be read: .*similar names are `priority`"
    with pytest.raises(PipelineError, match=expected):
        Pipeline.load("priorty")
    (tmp_path / "priority").write_text('name = "mine"\n')
    assert Pipeline.load("priority").name == "mine"


def test_pipelines_are_copied_and_saved(tmp_path):
    pipeline = Pipeline.parse(PROMISE, name="mine.toml").set("seed=5")
    assert copy.deepcopy(pipeline) is pipeline
    assert copy.copy(pipeline) is pipeline
    loaded = pickle.loads(pickle.dumps(pipeline))
    assert loaded.to_toml() == pipeline.to_toml()
    assert loaded.set("seed=6").to_toml() == pipeline.set("seed=6").to_toml()
    weights = Pipeline.load(CONFIGS / "loki.toml")
    assert pickle.loads(pickle.dumps(weights)).to_toml() == weights.to_toml()


def test_a_missing_file_is_named():
    with pytest.raises(PipelineError, match="nowhere.toml"):
        Pipeline.load("nowhere.toml")


def test_an_unknown_field_in_a_change_is_refused():
    with pytest.raises(
        PipelineError, match="unknown field `epsilom` in estimator .did you mean `epsilon`"
    ):
        Pipeline.parse(PROMISE).set("estimator.epsilom=0.1")


def test_shapes_and_options_are_checked():
    pipeline = Pipeline.parse('[[selectors]]\ntype = "pq-cache"\nsize = 0.1\n')
    pipeline.check(4, 2, 16)
    with pytest.raises(ValueError, match="query_heads: expected a multiple of kv_heads = 2, got 3"):
        pipeline.check(3, 2, 16)
    with pytest.raises(ValueError, match="pq-cache"):
        pipeline.check(4, 2, 15)
    with pytest.raises(ValueError, match="backend: no `gpu`; expected one of reference, cpu, cuda"):
        Attention(pipeline, 4, 2, 16, backend="gpu")
    with pytest.raises(ValueError, match="storage: expected f32, f16, bf16 or q8"):
        Attention(pipeline, 4, 2, 16, storage="f64")
    with pytest.raises(ValueError, match="fall_back: expected never, by-count or by-clock"):
        Attention(pipeline, 4, 2, 16, fall_back="always")
