"""Tests of generation with `transformers`.

The dense pipeline must generate what transformers does by itself, in all models and modes.
"""

import gc
import threading

import pytest
from models import (
    CACHE,
    FULL_LAYERS,
    MODELS,
    SIZES,
    TOLERANCE,
    assert_same,
    checkpoint,
    expected,
    generated,
    prompt,
    torch,
    transformers,
    vt,
)
from shared import CONFIGS, DENSE, PROMISE, ROOT

from vattention import Attention, Pipeline, Trace, compare, write_trace

SMOLLM2 = ROOT / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("padding", [(0,), (6, 0)], ids=["one", "padded"])
def test_dense_equals_transformers(name, padding):
    model, inputs = checkpoint(name), prompt(padding=padding)
    cache = vt.VAttentionCache(model.config, DENSE, report=True)
    found = generated(model, inputs, cache)
    assert_same(found, expected(model, inputs))
    layers = FULL_LAYERS.get(name, list(range(6)))
    assert {entry["layer"] for entry in cache.report()} == set(layers)
    assert len(cache.report()) == len(layers) * 15 * len(padding)


@pytest.mark.parametrize("name", MODELS)
def test_a_promise_of_nearly_nothing_is_dense(name):
    model, inputs = checkpoint(name), prompt()
    tiny = Pipeline.parse(PROMISE).set("estimator.epsilon=1e-7")
    assert_same(
        generated(model, inputs, vt.VAttentionCache(model.config, tiny)), expected(model, inputs)
    )


@pytest.mark.parametrize(
    ("options", "padding"),
    [
        ({"num_beams": 3, "num_return_sequences": 2}, (6, 0)),
        ({"do_sample": True, "num_return_sequences": 3}, (6, 0)),
        ({"num_beams": 2, "do_sample": True}, (0,)),
        ({"prompt_lookup_num_tokens": 3, "max_new_tokens": 40, "eos_token_id": 100}, (0,)),
    ],
    ids=["beams", "sequences", "sampled beams", "prompt lookup"],
)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_kinds_of_generation(name, options, padding):
    model, inputs = checkpoint(name), prompt(padding=padding)
    found = generated(model, inputs, vt.VAttentionCache(model.config, DENSE), **options)
    assert_same(found, generated(model, inputs, **options))


def test_assisted_generation():
    model, inputs = checkpoint(), prompt(padding=(0,))
    assistant = checkpoint(seed=0)
    options = {"assistant_model": assistant, "max_new_tokens": 40}
    cache = vt.VAttentionCache(model.config, DENSE, report=True)
    assert_same(generated(model, inputs, cache, **options), generated(model, inputs, **options))
    assert max(entry["rows"] for entry in cache.report()) > 4, "several tokens in one call"


def test_a_cache_continues():
    """A second prompt follows the first, as in a chat."""
    model, inputs = checkpoint(), prompt(padding=(0,))
    cache = vt.VAttentionCache(model.config, DENSE)
    first = generated(model, inputs, cache).sequences
    more = torch.cat([first, prompt(padding=(0,), seed=5)["input_ids"]], dim=1)
    inputs = {"input_ids": more, "attention_mask": torch.ones_like(more)}
    assert_same(generated(model, inputs, cache), generated(model, inputs))
    cache.reset()
    assert cache.get_seq_length() == 0
    assert_same(generated(model, inputs, cache), generated(model, inputs))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    model, inputs = checkpoint().to(getattr(torch, dtype)), prompt()
    found = generated(model, inputs, vt.VAttentionCache(model.config, DENSE), max_new_tokens=2)
    wanted = generated(model, inputs, max_new_tokens=2)
    scale = wanted.logits[1].abs().max()
    assert found.logits[1].dtype == wanted.logits[1].dtype
    assert (found.logits[1] - wanted.logits[1]).abs().max() < 0.05 * scale


def test_tensors_of_every_type_are_taken():
    from shared import DIM, QUERY_HEADS, filled, normal

    queries = torch.from_numpy(normal(QUERY_HEADS, 2, DIM))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rounded = queries.to(dtype)
        expected = filled().attend(rounded.float().numpy()).out
        assert (filled().attend(rounded).out == expected).all()
        strided = rounded.transpose(0, 1).contiguous().transpose(0, 1)
        assert (filled().attend(strided).out == expected).all()
    with pytest.raises((TypeError, ValueError), match="queries: "):
        filled().attend(torch.empty(QUERY_HEADS, 2, DIM, device="meta"))


def test_reports_of_steps_are_stored_on_request():
    model = checkpoint()
    cache = vt.VAttentionCache(model.config, DENSE)
    assert cache.summary() is None
    generated(model, prompt(), cache)
    assert cache.summary()["density"] == 1
    with pytest.raises(RuntimeError, match="report=True"):
        cache.report()


def test_report_and_check():
    model, inputs = checkpoint(), prompt(tokens=1500, padding=(0, 0))
    pipeline = Pipeline.load(CONFIGS / "priority.toml", "estimator.epsilon=0.3")
    cache = vt.VAttentionCache(model.config, pipeline, check=True, report=True)
    generated(model, inputs, cache, max_new_tokens=5)
    entries = cache.report()
    assert [(e["layer"], e["step"], e["sequence"]) for e in entries[:9]] == [
        (0, s, b) for s in range(4) for b in (0, 1)
    ] + [(1, 0, 0)]
    assert all(entry["violations"] is not None and entry["error"] is not None for entry in entries)
    assert min(entry["density"] for entry in entries) < 1
    summary = cache.summary()
    assert summary["violations"] < 0.2 * summary["rows"]
    assert list(summary) == [
        name for name in entries[0] if name not in ("layer", "step", "sequence")
    ]
    for name in ("rows", "exact", "promised", "held", "bounded", "unbounded", "violations"):
        assert summary[name] == sum(entry[name] for entry in entries)
    for name in ("visible", "widest_bar", "largest_error"):
        assert summary[name] == max(entry[name] for entry in entries if entry[name] is not None)
    for name, weight in (
        ("density", "rows"),
        ("sampled", "rows"),
        ("error", "rows"),
        ("bar", "bounded"),
    ):
        weighed = sum((entry[name] or 0) * entry[weight] for entry in entries)
        assert summary[name] == pytest.approx(weighed / summary[weight])
    wrong = Pipeline.parse('[[selectors]]\ntype = "window"\nsize = 1\n')
    cache = vt.VAttentionCache(model.config, wrong, check=True, report=True)
    generated(model, inputs, cache, max_new_tokens=3)
    assert max(entry["largest_error"] for entry in cache.report()) > 0.1, "one token is not enough"


def test_samples_differ_between_sequences_and_beams():
    model = checkpoint()
    ids = prompt(tokens=1500, padding=(0,))["input_ids"].repeat(2, 1)
    cache = vt.VAttentionCache(model.config, Pipeline.parse(PROMISE), fall_back="never")
    generated(
        model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, cache, max_new_tokens=2
    )
    layer = cache.layers[0]
    layer.reorder_cache(torch.tensor([0, 0]))
    query = torch.randn(4, 1, 16)
    first, second = (attention.attend(query) for attention in layer.sequences)
    assert (first.out != second.out).any()


# Errors.


def test_unsupported_models_are_refused():
    with pytest.raises(ValueError, match=r"DeepseekV3Config caches latent vectors \(MLA"):
        vt.VAttentionCache(transformers.DeepseekV3Config(), DENSE)
    with pytest.raises(ValueError, match="expected at least one layer of full or sliding"):
        vt.VAttentionCache(
            transformers.LlamaConfig(**SIZES, layer_types=["linear_attention"] * 6), DENSE
        )


def test_a_window_that_is_too_short_is_refused():
    model, inputs = checkpoint("mistral"), prompt(tokens=60)
    with pytest.raises(ValueError, match="layer 0 slides over 64 tokens: expected no more, got 65"):
        generated(model, inputs, vt.VAttentionCache(model.config, DENSE))


def test_another_attention_function_is_refused():
    model = checkpoint()
    cache = vt.VAttentionCache(model.config, DENSE)
    generated(model, prompt(), cache)
    model.set_attn_implementation("sdpa")
    with pytest.raises(
        RuntimeError,
        match=r"the model's attention is `sdpa`: expected "
        r"model.set_attn_implementation\('vattention'\)",
    ):
        generated(model, prompt(tokens=40), cache)


def test_another_model_or_type_is_refused():
    model, inputs = checkpoint(), prompt()
    cache = vt.VAttentionCache(model.config, DENSE)
    sequences = generated(model, inputs, cache).sequences
    longer = {
        "input_ids": sequences,
        "attention_mask": torch.cat([inputs["attention_mask"], torch.ones(2, 16, dtype=int)], 1),
    }
    with pytest.raises(RuntimeError, match="filled by another model"):
        generated(checkpoint(seed=1), longer, cache)
    with pytest.raises(RuntimeError, match="ended in the middle: expected reset"):
        generated(model, longer, cache)
    cache.reset()
    generated(model, inputs, cache)
    with pytest.raises(RuntimeError, match="before the model's dtype changed"):
        generated(model.to(torch.bfloat16), longer, cache)


def test_another_model_is_refused_after_the_first_is_freed():
    model, inputs = checkpoint(), prompt()
    cache = vt.VAttentionCache(model.config, DENSE)
    sequences = generated(model, inputs, cache).sequences
    del model
    gc.collect()
    longer = {"input_ids": sequences, "attention_mask": torch.ones_like(sequences)}
    with pytest.raises(RuntimeError, match="filled by another model"):
        generated(checkpoint(), longer, cache)


def test_concurrent_use_by_two_threads_is_refused():
    model, inputs = checkpoint(), prompt(tokens=400, padding=(0, 0))
    cache = vt.VAttentionCache(model.config, DENSE)
    start, failures = threading.Barrier(2), []

    def run():
        start.wait()
        try:
            generated(model, inputs, cache, max_new_tokens=50)
        except (RuntimeError, ValueError) as error:
            failures.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any("in use by another thread" in failure for failure in failures), failures


def test_masks_that_hide_more_than_padding_are_refused():
    model, inputs = checkpoint(), prompt()
    cache = vt.VAttentionCache(model.config, DENSE)
    with torch.no_grad():
        model(**inputs, **{CACHE: cache})
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, 1, dtype=int)], 1)
        mask[1, 10] = 0
        with pytest.raises(
            ValueError, match="attention_mask: expected a mask that hides nothing but later tokens"
        ):
            model(input_ids=torch.ones(2, 1, dtype=int), attention_mask=mask, **{CACHE: cache})


def test_gradients_are_refused():
    model = checkpoint()
    with pytest.raises(ValueError, match="has no gradient: expected torch.no_grad"):
        model(**prompt(), **{CACHE: vt.VAttentionCache(model.config, DENSE)})


def test_cropping_is_refused_after_learning():
    model, inputs = checkpoint(), prompt(padding=(0,))
    cache = vt.VAttentionCache(model.config, CONFIGS / "h2o.toml")
    generated(model, inputs, cache, max_new_tokens=2)
    with pytest.raises(RuntimeError, match="a selector learns from steps"):
        cache.crop(-1)


# Traces, and a real model.


@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma2", "gpt_oss"])
def test_capture(name, tmp_path):
    model, inputs = checkpoint(name), prompt(tokens=60, padding=(0,))
    layers = vt.capture(model, inputs["input_ids"], queries=4, prompt=8)
    assert list(layers) == FULL_LAYERS.get(name, list(range(6)))
    assert model.config._attn_implementation == "vattention"
    write_trace(tmp_path / "trace.safetensors", layers, storage="f32")
    trace = Trace(tmp_path / "trace.safetensors")
    layout = trace.layers[5]
    assert (layout["tokens"], layout["queries"], layout["prompt"]) == (60, 4, 8)
    assert compare([DENSE], trace)["pipelines"][0]["output_error"]["max"] < 1e-5
    layer, model_output = layers[5], []
    model.get_decoder().layers[5].self_attn.o_proj.register_forward_pre_hook(
        lambda _, inputs: model_output.append(inputs[0])
    )
    with torch.no_grad():
        model(inputs["input_ids"])
    form = {part: layer.get(part) for part in ("soft_cap", "sink_logits")}
    assert (form["soft_cap"], form["sink_logits"] is None) == (
        2.0 if name == "gemma2" else None,
        name != "gpt_oss",
    )
    attention = Attention(DENSE, 4, 2, 16, **form)
    attention.append(layer["keys"], layer["values"])
    captured = (
        attention.attend(layer["queries"], layer["visible"].tolist())
        .out.transpose(1, 0, 2)
        .reshape(4, -1)
    )
    assert abs(captured - model_output[0][0, -4:].numpy()).max() < TOLERANCE, (
        "the scale must be the model's own"
    )
    with pytest.raises(ValueError, match=r"expected shape \[1, tokens\]"):
        vt.capture(model, prompt()["input_ids"])
    with pytest.raises(ValueError, match="expected at least 32 queries and 64 tokens"):
        vt.capture(model, inputs["input_ids"])


@pytest.fixture(scope="module")
def smollm2():
    if not SMOLLM2.exists():
        pytest.skip(f"{SMOLLM2} is missing; download it with tools/get_smollm2.py")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    options = {
        "gguf_file": SMOLLM2.name,
        "dtype": torch.float32,
        "attn_implementation": "vattention",
    }
    return transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2.parent, **options).eval()


def test_smollm2(smollm2):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(100, 40_000, (2, 200), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :100] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected = generated(smollm2, inputs, max_new_tokens=6)
    tiny = Pipeline.load(CONFIGS / "priority.toml", "estimator.epsilon=1e-7")
    for pipeline in (DENSE, tiny):
        cache = vt.VAttentionCache(smollm2.config, pipeline)
        assert_same(generated(smollm2, inputs, cache, max_new_tokens=6), expected)
