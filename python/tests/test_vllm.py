"""Tests of the plug-in for vLLM, on classes with the signatures of vLLM."""

from importlib.metadata import entry_points, packages_distributions

import numpy as np
import pytest
from toy_vllm import DIM, KV_HEADS, QUERY_HEADS, SCALE, ToyVllm, find_backend, torch
from vllm.config import VllmConfig
from vllm.v1.attention.backend import AttentionImpl, AttentionMetadataBuilder
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from vattention import Attention, Pipeline
from vattention.vllm import VARIABLE, register

# Reads few tokens, which follow from the index and not from samples. Without a window, so that each
# token is found by the index.
QUEST = '[[selectors]]\ntype = "quest"\nsize = 0.04\npage = 4\n'

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


@pytest.fixture(autouse=True)
def forget_registration():
    yield
    AttentionBackendEnum.CPU_ATTN.clear_override()


@pytest.fixture
def start(monkeypatch):
    """Returns a function that starts an engine with a pipeline."""

    def start_engine(pipeline="dense", **options):
        monkeypatch.setenv(VARIABLE, str(pipeline))
        register()
        return ToyVllm(**options)

    return start_engine


@pytest.fixture
def start_quest(start, tmp_path):
    """Returns a function that starts an engine whose outputs depend on the indexes."""
    (tmp_path / "quest.toml").write_text(QUEST)
    return lambda **options: start(tmp_path / "quest.toml", **options)


def run_exactly(engine, new, tolerance=1e-5):
    """Runs a step whose outputs are those of exact attention."""
    for name, (query, output) in engine.step(new).items():
        expected = engine.exact(name, query)
        torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=tolerance)


def run_by_quest(engine, new):
    """Runs a step of one token of each request, whose outputs equal those of new indexes."""
    pipeline = Pipeline.parse(QUEST, name="quest")
    for name, (query, output) in engine.step(new).items():
        request = engine.requests[name]
        for layer in range(len(engine.layers)):
            attention = Attention(pipeline, QUERY_HEADS, KV_HEADS, DIM, layer=layer, scale=SCALE)
            tokens = slice(request.computed)
            attention.append(request.keys[layer][:, tokens], request.values[layer][:, tokens])
            expected = attention.attend(query[layer])
            assert expected.summary()["density"] < 0.5, "the index chooses"
            np.testing.assert_array_equal(output[layer].numpy(), expected.out)


def read_prompts(engine, prompts):
    for name, tokens in prompts.items():
        engine.add(name, tokens)
    engine.step(prompts)


def indexed(engine):
    """Numbers of indexed tokens of each layer, in the order of the sequences' numbers."""
    return [list(layer.impl.paged.lengths.values()) for layer in engine.layers]


def test_without_the_variable_vllm_keeps_its_attention(monkeypatch):
    own = AttentionBackendEnum.CPU_ATTN.get_path()
    monkeypatch.delenv(VARIABLE, raising=False)
    register()
    monkeypatch.setenv(VARIABLE, "")
    register()
    assert AttentionBackendEnum.CPU_ATTN.get_path() == own


def test_registration(monkeypatch):
    monkeypatch.setenv(VARIABLE, "priority")
    register()
    register()
    backend = find_backend()
    assert backend.__module__.startswith("vattention.vllm")
    assert backend.get_name() == "CPU_ATTN"
    assert issubclass(backend.get_impl_cls(), AttentionImpl)
    assert issubclass(backend.get_builder_cls(), AttentionMetadataBuilder)
    assert not backend.forward_includes_kv_cache_update
    assert torch.bfloat16 in backend.supported_dtypes
    assert backend.supports_head_size(96)
    assert not backend.supports_head_size(80)
    assert backend.supports_sink()
    assert not backend.supports_kv_connector()


def test_the_entry_point_is_installed():
    if "vattention" not in packages_distributions():
        pytest.skip("the package is not installed")
    (point,) = entry_points(group="vllm.general_plugins", name="vattention")
    assert point.load() is register


def test_a_pipeline_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setenv(VARIABLE, "no-such-pipeline")
    with pytest.raises((ValueError, OSError), match="no-such-pipeline"):
        register()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_written_to_their_slots(start, dtype):
    engine = start(layers=1, blocks=4, dtype=dtype)
    layer, before = engine.layers[0], engine.layers[0].kv_cache.clone()
    keys, values = engine.normal(4, KV_HEADS, DIM), engine.normal(4, KV_HEADS, DIM)
    slots = torch.tensor([2 * 16 + 3, -1, 5])  # The last row has no slot.
    layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, slots)
    before[2, :, 3] = torch.cat([keys[0], values[0]], dim=-1)
    before[0, :, 5] = torch.cat([keys[2], values[2]], dim=-1)
    torch.testing.assert_close(layer.kv_cache, before, equal_nan=True, rtol=0, atol=0)


OPTIONS = [{}, {"logits_soft_cap": 2.0}, {"sinks": SINKS}, {"logits_soft_cap": 2.0, "sinks": SINKS}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "plain")
def test_dense_attention_is_exact(start, options):
    """Prompts in one part and in several, batches of prompts and later tokens."""
    engine = start(**options)
    engine.add("a", 300)
    run_exactly(engine, {"a": 300})
    engine.add("b", 330)
    run_exactly(engine, {"a": 1, "b": 10})
    run_exactly(engine, {"b": 300, "a": 1})
    engine.add("c", 1)
    run_exactly(engine, {"b": 20, "c": 1})
    run_exactly(engine, {"b": 1, "c": 1, "a": 1})
    run_exactly(engine, {"b": 1})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(start, dtype):
    engine = start(dtype=dtype)
    engine.add("a", 100)
    run_exactly(engine, {"a": 100}, tolerance=0.03)
    run_exactly(engine, {"a": 1}, tolerance=0.03)


def test_a_prompt_that_ends_with_a_single_token_is_dense(start_quest):
    engine = start_quest()
    engine.add("a", 301)
    engine.step({"a": 300})
    run_exactly(engine, {"a": 1})
    assert indexed(engine) == [[], []]
    run_by_quest(engine, {"a": 1})


def test_later_tokens_attend_by_the_pipeline(start_quest):
    """Batches change from step to step, and a prompt is read meanwhile."""
    engine = start_quest()
    read_prompts(engine, {"a": 200, "b": 333})
    run_by_quest(engine, {"a": 1, "b": 1})
    run_by_quest(engine, {"b": 1})
    run_by_quest(engine, {"b": 1, "a": 1})
    engine.add("c", 150)
    results = engine.step({"a": 1, "c": 150})
    torch.testing.assert_close(
        results["c"][1].double(), engine.exact("c", results["c"][0]), atol=1e-5, rtol=1e-5
    )
    run_by_quest(engine, {"c": 1, "a": 1, "b": 1})
    assert indexed(engine) == [[204, 337, 151]] * 2


class Reports:
    """A `PagedAttention` whose reports are kept."""

    def __init__(self, paged):
        self.paged = paged
        self.outputs = []

    def __getattr__(self, name):
        return getattr(self.paged, name)

    def attend(self, *arguments):
        self.outputs.append(self.paged.attend(*arguments))
        return self.outputs[-1]


def test_errors_are_within_their_bars(start):
    """The shares of rows with larger errors are those of a promise with a delta of 0.1."""
    engine = start("priority", blocks=300)
    for layer in engine.layers:
        layer.impl.paged = Reports(layer.impl.paged)
    read_prompts(engine, {"a": 3000, "b": 1500})
    errors = []
    for _ in range(8):
        for name, (query, output) in engine.step({"a": 1, "b": 1}).items():
            exact = engine.exact(name, query)
            error = (output.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
            errors.append(error.flatten())
    rows = [row for layer in engine.layers for out in layer.impl.paged.outputs for row in out.rows]
    assert len(rows) == 8 * 2 * 2 * QUERY_HEADS
    assert all(row["promised"] and row["held"] for row in rows)
    assert np.mean([row["read"] / row["visible"] for row in rows]) < 0.6
    errors = torch.cat(errors)
    assert (errors > 0.1).double().mean() <= 0.1
    assert errors.max() > 1e-4


def test_blocks_are_used_again(start_quest):
    """A request gets all blocks of one that ended, in the same order."""
    engine = start_quest(blocks=32)
    read_prompts(engine, {"a": 200, "b": 150})
    run_by_quest(engine, {"a": 1, "b": 1})
    for count in range(3):
        table = list(engine.requests["a"].blocks)
        engine.finish("a")
        read_prompts(engine, {"a": 199 + 2 * count})
        assert engine.requests["a"].blocks == table
        run_by_quest(engine, {"b": 1, "a": 1})
        run_by_quest(engine, {"a": 1})
    assert indexed(engine) == [[154, 205]] * 2


def test_a_request_that_reads_its_blocks_again_has_the_index_of_its_new_tokens(start_quest):
    """The first block is shared and remains, and a later one is overwritten."""
    engine = start_quest()
    read_prompts(engine, {"a": 200})
    run_by_quest(engine, {"a": 1})
    table = list(engine.requests["a"].blocks)
    engine.share("b", "a", 220, shared=160)
    engine.finish("a")
    engine.step({"b": 60})
    assert engine.requests["b"].blocks[: len(table)] == table
    run_by_quest(engine, {"b": 1})


def test_requests_share_the_blocks_of_a_prefix(start_quest):
    engine = start_quest()
    read_prompts(engine, {"a": 200})
    run_by_quest(engine, {"a": 1})
    engine.share("b", "a", 240, shared=192)
    run_exactly(engine, {"b": 48})
    for _ in range(20):
        run_by_quest(engine, {"b": 1, "a": 1})
    assert sorted(indexed(engine)[0]) == [221, 260]


def test_a_request_continues_the_tokens_of_one_that_ended(start_quest):
    """A conversation: the prompt is that of the last turn with its answer, whose blocks remain."""
    engine = start_quest()
    read_prompts(engine, {"a": 190})
    run_by_quest(engine, {"a": 1})
    run_by_quest(engine, {"a": 1})  # 192 tokens are 12 blocks.
    engine.share("b", "a", 240, shared=192)
    engine.step({"b": 48})
    run_by_quest(engine, {"b": 1})
    assert indexed(engine) == [[241]] * 2, "the index of the first request grew"
    run_by_quest(engine, {"a": 1, "b": 1})


def test_preemption(start_quest):
    """A request returns in other blocks, after its own were used by others or remained."""
    engine = start_quest(blocks=40)
    read_prompts(engine, {"a": 200, "b": 100})
    run_by_quest(engine, {"a": 1, "b": 1})
    engine.preempt("a")
    read_prompts(engine, {"c": 250})
    run_by_quest(engine, {"b": 1, "c": 1})
    engine.step({"a": 201})
    run_by_quest(engine, {"a": 1, "b": 1, "c": 1})
    engine.preempt("a")
    engine.step({"a": 202})
    run_by_quest(engine, {"c": 1, "a": 1, "b": 1})


def test_rejected_drafts(start_quest):
    """Tokens whose slots are written again are indexed again."""
    engine = start_quest()
    read_prompts(engine, {"a": 200})
    run_by_quest(engine, {"a": 1})
    request = engine.requests["a"]
    for _ in range(2):
        request.computed -= 1
        request.keys, request.values = request.keys[:, :, :-1], request.values[:, :, :-1]
        run_by_quest(engine, {"a": 1})


def test_indexes_of_old_sequences_are_freed(start_quest):
    """A sequence that was not among the last ones is indexed again."""
    engine = start_quest(max_num_seqs=2)
    read_prompts(engine, {"a": 100, "b": 110, "c": 120})
    run_by_quest(engine, {"a": 1, "b": 1})
    run_by_quest(engine, {"b": 1, "c": 1})
    assert indexed(engine) == [[112, 121]] * 2
    run_by_quest(engine, {"a": 1, "b": 1, "c": 1})
    assert sorted(indexed(engine)[0]) == [102, 113, 122], "all of a batch"


def test_a_layer_that_missed_a_step(start_quest):
    engine = start_quest()
    read_prompts(engine, {"a": 100})
    run_by_quest(engine, {"a": 1})
    layer = engine.layers[1]
    forward = layer.impl.forward
    layer.impl.forward = lambda *arguments: None
    engine.step({"a": 1})
    layer.impl.forward = forward
    run_by_quest(engine, {"a": 1})


REFUSED_OPTIONS = [
    ({"alibi_slopes": [0.1] * QUERY_HEADS}, "a layer has ALiBi slopes: expected logits"),
    ({"sliding_window": 128}, "a layer has a sliding window of 128: expected full attention"),
    ({"kv_cache_dtype": "fp8"}, "the KV cache is fp8: expected auto or float16"),
    ({"attn_type": "encoder_only"}, "attention of the type encoder_only: expected a decoder"),
    (
        {"kv_sharing_target_layer_name": "model.layers.3.self_attn.attn"},
        r"uses the KV cache of model.layers.3.self_attn.attn: expected a cache of its own",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED_OPTIONS)
def test_refused_layers(monkeypatch, options, message):
    monkeypatch.setenv(VARIABLE, "dense")
    register()
    with pytest.raises(ValueError, match=f"^vattention: .*{message}.* if {VARIABLE} is not set"):
        find_backend().get_impl_cls()(QUERY_HEADS, DIM, SCALE, KV_HEADS, **options)


REFUSED_CONFIGS = [
    ("parallel_config.tensor_parallel_size", 2, "tensor_parallel_size is 2: expected 1"),
    ("parallel_config.decode_context_parallel_size", 2, "decode_context_parallel_size is 2"),
    ("speculative_config", object(), "speculative_config: expected none"),
    ("kv_transfer_config", object(), "kv_transfer_config: expected none"),
]


@pytest.mark.parametrize(("option", "value", "message"), REFUSED_CONFIGS)
def test_refused_configs(start, option, value, message):
    engine, config = start(), VllmConfig()
    *path, name = option.split(".")
    setattr(getattr(config, path[0]) if path else config, name, value)
    builder = engine.builder
    with pytest.raises(ValueError, match=message):
        type(builder)(builder.kv_cache_spec, [], config, torch.device("cpu"))


@pytest.mark.parametrize("pipeline", ["snapkv", "fastgen"])
def test_pipelines_that_learn_from_prompts_are_refused(start, pipeline):
    with pytest.raises(ValueError, match="learns from prompts: expected one that needs only keys"):
        start(pipeline)


def test_dimensions_are_refused_when_vllm_warms_up(start, monkeypatch):
    monkeypatch.setattr("toy_vllm.DIM", 80)
    with pytest.raises(ValueError, match="head_dim: expected a multiple of 32, got 80"):
        start()


def test_steps_that_are_refused(start):
    engine = start(layers=1)
    layer = engine.layers[0]
    read_prompts(engine, {"a": 20})
    metadata = engine.build([engine.requests["a"]], [1], [20], [False])
    rows = torch.zeros(1, KV_HEADS, DIM)
    query = torch.zeros(1, QUERY_HEADS, DIM)

    def forward(cache, *scales):
        layer.impl.forward(layer, query, rows, rows, cache, metadata, query.clone(), *scales)

    with pytest.raises(ValueError, match="blocks of the KV cache have 8 rows: expected 16"):
        forward(layer.kv_cache[:, :, :8])
    with pytest.raises(ValueError, match="the output of a layer is quantized"):
        forward(layer.kv_cache, torch.ones(1))
    layer.layer_name, layer.impl.paged = "model.layers.attn", None
    with pytest.raises(ValueError, match="a name with one number"):
        forward(layer.kv_cache)


def test_attention_that_is_not_causal_is_refused(start):
    engine = start()
    engine.add("a", 20)
    common = {}
    engine.builder.build = lambda _, batch: common.update(batch=batch)
    engine.build([engine.requests["a"]], [20], list(range(20)), [True])
    del engine.builder.build
    common["batch"].causal = False
    with pytest.raises(ValueError, match="attention is not causal: expected a decoder"):
        engine.builder.build(0, common["batch"])
