"""Tests of traces and of the tools that measure pipelines on them."""

import json

import numpy as np
import pytest
from shared import CONFIGS, DIM, KV_HEADS, QUERY_HEADS, TRACE, normal

import vattention
from vattention import Pipeline, Trace


def test_a_trace_is_read():
    trace = Trace(TRACE)
    number, layout = next(iter(trace.layers.items()))
    layer = trace.layer(number)
    assert layer["keys"].shape == (layout["kv_heads"], layout["tokens"], layout["head_dim"])
    assert layer["queries"].shape == (layout["query_heads"], layout["queries"], layout["head_dim"])
    assert layer["visible"].max() == layout["tokens"]
    assert str(trace.model).startswith("Llama, 30 layers")
    with pytest.raises(KeyError, match="layer 4000: expected one of"):
        trace.layer(4000)
    with pytest.raises(OSError, match="nowhere"):
        Trace("nowhere.safetensors")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        Trace(CONFIGS / "dense.toml")


def test_a_trace_is_written(tmp_path):
    layer = {
        "queries": normal(QUERY_HEADS, 2, DIM),
        "keys": normal(KV_HEADS, 30, DIM),
        "values": normal(KV_HEADS, 30, DIM),
        "prompt": normal(QUERY_HEADS, 3, DIM),
        "visible": np.array([29, 30]),
        "prompt_tokens": 28,
        "classes": np.arange(30, dtype=np.uint8) % 3,
    }
    path = tmp_path / "trace.safetensors"
    vattention.write_trace(
        path, {3: layer}, storage="f32", scale=0.5, model="random", source="nothing"
    )
    trace = Trace(path)
    assert (trace.scale, trace.model, trace.source, list(trace.layers)) == (
        0.5,
        "random",
        "nothing",
        [3],
    )
    read = trace.layer(3)
    for name, part in layer.items():
        np.testing.assert_array_equal(read[name], part)
    assert (
        vattention.compare([Pipeline.parse("")], path)["pipelines"][0]["output_error"]["max"] < 1e-5
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"keys": normal(3, 30, DIM)},
            r"layers.3.values` has shape \[2, 30, 16\]; expected \[3, 30, 16\]",
        ),
        ({"visible": [1, 40]}, r"layers.3.visible`: 40 at \[1\]; expected 1 to 30"),
        ({"classes": [0] * 29}, r"layers.3.classes` has shape \[29\]; expected \[30\]"),
        ({"rows": 1}, r"layers\[3\]: no part `rows`"),
        ({"queries": None}, r"layers\[3\]: expected `queries`"),
    ],
)
def test_invalid_layers_are_refused(tmp_path, change, message):
    keys = normal(KV_HEADS, 30, DIM)
    layer = {"queries": normal(QUERY_HEADS, 2, DIM), "keys": keys, "values": keys, **change}
    with pytest.raises(ValueError, match=message):
        vattention.write_trace(tmp_path / "trace.safetensors", {3: layer})
    assert not list(tmp_path.iterdir())


def test_compare():
    trace = Trace(TRACE)
    layer = next(iter(trace.layers))
    pipelines = [CONFIGS / "dense.toml", Pipeline.load(CONFIGS / "streaming-llm.toml")]
    found = vattention.compare(pipelines, trace, layers=[layer], queries=8)
    dense, streaming = found["pipelines"]
    assert (dense["pipeline"], streaming["pipeline"]) == ("dense", "StreamingLLM")
    assert dense["output_error"]["max"] < 1e-4 < 0.1 < streaming["output_error"]["mean"]
    assert dense["density"] == 1
    json.dumps(found)
    with pytest.raises(ValueError, match="queries"):
        vattention.compare(pipelines, trace, queries=10_000)


STREAMING = CONFIGS / "streaming-llm.toml"


@pytest.mark.parametrize(
    "pipeline", [str(STREAMING), STREAMING, "streaming-llm", Pipeline.load("streaming-llm")]
)
def test_one_pipeline_is_a_list_of_one(pipeline):
    """A path is a single item, not a list of letters."""
    layer = next(iter(Trace(TRACE).layers))
    found = vattention.compare(pipeline, TRACE, layers=[layer], queries=2)
    assert [entry["pipeline"] for entry in found["pipelines"]] == ["StreamingLLM"]
    limits = vattention.study("limit", TRACE, pipelines=pipeline, layers=[layer], queries=2)
    assert limits["trace"] == str(TRACE)
    with pytest.raises(ValueError, match="pipelines: the study `tightness` expects none, got 1"):
        vattention.study("tightness", TRACE, pipelines=pipeline)


def test_a_pipeline_that_does_not_fit_is_named(tmp_path):
    odd = {"queries": normal(2, 1, 15), "keys": normal(1, 30, 15), "values": normal(1, 30, 15)}
    vattention.write_trace(tmp_path / "odd.safetensors", {0: odd})
    with pytest.raises(ValueError, match="pq.toml, on layer 0: pq-cache"):
        pq = Pipeline.parse('[[selectors]]\ntype = "pq-cache"\nsize = 0.1\n', name="pq.toml")
        vattention.compare([pq], tmp_path / "odd.safetensors")


def test_verify():
    few = vattention.verify(CONFIGS / "vattention-oracle.toml", TRACE, trials=8)
    assert (few["verdict"], few["held"]) == ("undecided", False)
    trials = few["row_coverage"]["least_trials"]
    enough = vattention.verify(CONFIGS / "vattention-oracle.toml", TRACE, trials=trials)
    assert (enough["verdict"], enough["held"]) == ("held", True)
    layers = Trace(TRACE).layers.values()
    assert len(enough["heads"]) == sum(layer["query_heads"] for layer in layers)
    with pytest.raises(ValueError, match="estimator"):
        vattention.verify(CONFIGS / "dense.toml", TRACE)


def test_verify_finds_a_broken_promise_and_its_cause(tmp_path):
    """One token among 4000 has most of the attention, and no selector finds it."""
    queries, keys, values = np.ones((1, 1, 8)), 0.1 * normal(1, 4000, 8), 1 + normal(1, 4000, 8)
    keys[0, 1234], values[0, 1234] = 5, 50
    layer = {"queries": queries.astype(np.float32), "keys": keys, "values": values}
    vattention.write_trace(tmp_path / "needle.safetensors", {0: layer})
    blind = Pipeline.parse('[estimator]\ntype = "ratio"\nepsilon = 0.1\ndelta = 0.1\n')
    broken = vattention.verify(blind, tmp_path / "needle.safetensors", trials=200)
    assert broken["verdict"] == "contradicted"
    assert broken["fault"]["cause"] == "tail-seen"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("tightness", {"trials": 5}),
        ("epsilon", {"trials": 2, "epsilons": [0.1]}),
        ("base-sample", {"trials": 2, "sizes": [64]}),
        ("normality", {"trials": 5, "sizes": [16]}),
        ("coverage", {"trials": 2}),
        ("bias", {"trials": 2, "shares": [0.05]}),
        ("calibration", {"trials": 5, "deltas": [0.1]}),
        ("sensitivity", {}),
        ("pareto", {}),
        ("limit", {}),
    ],
)
def test_studies(name, parameters):
    trace = Trace(TRACE)
    layer = next(iter(trace.layers))
    pipelines = (
        [CONFIGS / "vattention-oracle.toml"] if name in ("calibration", "pareto", "limit") else []
    )
    found = vattention.study(
        name, trace, pipelines=pipelines, layers=[layer], queries=2, **parameters
    )
    assert found["trace"] == str(TRACE)
    json.dumps(found)


def test_unknown_studies_and_options_are_refused():
    with pytest.raises(
        ValueError,
        match="study: unknown variant `tightnes`, expected one of `tightness`, `epsilon`",
    ):
        vattention.study("tightnes", TRACE)
    with pytest.raises(
        ValueError,
        match="study: unknown field `epsilons`, expected one of `epsilon`, `delta`, `trials`",
    ):
        vattention.study("tightness", TRACE, epsilons=[0.1])
    with pytest.raises(ValueError, match="the study `limit` expects at least one, got 0"):
        vattention.study("limit", TRACE)
    with pytest.raises(ValueError, match="study: .*expected a number strictly between 0 and 1"):
        vattention.study("tightness", TRACE, epsilon=2.0)


def test_pandas_takes_results():
    pandas = pytest.importorskip("pandas")
    layer = next(iter(Trace(TRACE).layers))
    found = vattention.compare(
        [CONFIGS / "vattention-oracle.toml"], TRACE, layers=[layer], queries=4, progress=True
    )
    table = pandas.json_normalize(found["pipelines"])
    assert 0 < table["output_error.mean"][0] < 0.1
