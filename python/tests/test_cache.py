"""Tests of `VAttentionCache`: selection of sequences, ended rows, chunks, copies and files."""

import copy
import io
import pickle
from collections import Counter
from itertools import pairwise

import pytest
from models import (
    CACHE,
    TOLERANCE,
    assert_same,
    checkpoint,
    generated,
    prompt,
    torch,
    transformers,
    vt,
)
from shared import CONFIGS, DENSE, PROMISE

from vattention import Pipeline

LEARNS = Pipeline.load(CONFIGS / "snapkv.toml", "selectors.0.size=40", "selectors.0.window=16")
"""Pipeline that reads only the tokens that the prompt's last queries attend to."""

SAMPLES = Pipeline.parse(PROMISE)


def forward(model, ids, cache):
    """Runs the model on `ids`, and returns the logits of the last token."""
    mask = torch.ones(len(ids), cache.get_seq_length() + ids.shape[1], dtype=int)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, **{CACHE: cache}).logits[:, -1]


def filled(model, pipeline=DENSE, batch=3, tokens=30, steps=0, **options):
    """Returns a cache that has read a prompt, and `steps` tokens after it."""
    cache = vt.VAttentionCache(model.config, pipeline, **options, report=True)
    forward(model, prompt(tokens=tokens, padding=(0,) * batch)["input_ids"], cache)
    for step in range(steps):
        forward(model, torch.full((batch, 1), 5 + step), cache)
    return cache


# Batches.


@pytest.mark.parametrize("steps", [0, 2], ids=["prompt", "steps"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("indices", "places"),
    [
        (torch.tensor([False, True, True]), [1, 2]),
        (torch.tensor([True, False, False]), [0]),
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([-1], dtype=torch.int32), [2]),
        ([True, False, True], [0, 2]),
    ],
)
def test_places_and_masks_select_sequences(name, steps, indices, places):
    model = checkpoint(name)
    cache, whole = filled(model, steps=steps), filled(model, steps=steps)
    cache.batch_select_indices(indices)
    ids = torch.tensor([[7], [8], [9]])
    assert (
        forward(model, ids[places], cache) - forward(model, ids, whole)[places]
    ).abs().max() < TOLERANCE


@pytest.mark.parametrize("steps", [0, 2], ids=["prompt", "steps"])
def test_batches_grow(steps):
    model = checkpoint()
    cache = filled(model, batch=2, steps=steps)
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([3, 0, 0, 1]))
    whole = filled(model, batch=2, steps=steps)
    ids = torch.tensor([[7], [8]])
    logits = forward(model, ids[[1, 0, 0, 0]], cache)
    assert (logits - forward(model, ids, whole)[[1, 0, 0, 0]]).abs().max() < TOLERANCE
    assert len(set(cache.layers[0].numbers)) == 4


@pytest.mark.parametrize("steps", [0, 1], ids=["prompt", "steps"])
@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        (torch.tensor([True, False]), ValueError, "expected a mask of 3 sequences, got 2"),
        (torch.tensor([False] * 3), ValueError, "expected at least one sequence, got none"),
        (
            torch.tensor([1.0]),
            ValueError,
            "expected indices of type int64 or a mask of type bool, got torch.float32",
        ),
        (torch.tensor([1, 0, 1], dtype=torch.uint8), ValueError, "got torch.uint8"),
        (torch.tensor([[0]]), ValueError, r"of one dimension, got shape \[1, 1\]"),
        (torch.tensor([0, 3]), IndexError, "expected indices from 0 to 2, got 3"),
        (torch.tensor([-4]), IndexError, "expected indices from 0 to 2, got -4"),
    ],
)
@pytest.mark.parametrize("function", ["batch_select_indices", "reorder_cache"])
def test_wrong_places_are_refused(function, indices, error, message, steps):
    model = checkpoint("gemma3")
    cache, whole = filled(model, steps=steps), filled(model, steps=steps)
    with pytest.raises(error, match=f"{function}: .*{message}"):
        getattr(cache, function)(indices)
    ids = torch.tensor([[7], [8], [9]])
    assert torch.equal(forward(model, ids, cache), forward(model, ids, whole)), (
        "nothing has changed"
    )


@pytest.mark.parametrize("repeats", [0, -1, True, 1.5])
def test_wrong_repeats_are_refused(repeats):
    with pytest.raises(
        ValueError, match="batch_repeat_interleave: expected a whole number of repeats, 1 or more"
    ):
        filled(checkpoint()).batch_repeat_interleave(repeats)


def test_an_empty_cache_selects_nothing():
    cache = vt.VAttentionCache(checkpoint("gemma3").config, DENSE)
    cache.batch_select_indices(torch.tensor([1]))
    cache.batch_repeat_interleave(2)
    assert cache.get_seq_length() == 0


# Rows that have ended.


def ending(padding_token=0):
    """Makes a model and inputs, of which the first row ends some steps before the second."""
    model, inputs = checkpoint(), prompt(tokens=40)
    first, second = generated(model, inputs).sequences[:, 40:].tolist()
    ends = next(token for token in first[2:] if token not in second and first.index(token) >= 2)
    model.generation_config.pad_token_id = ends if padding_token is None else padding_token
    return model, inputs, ends, first.index(ends)


@pytest.mark.parametrize("padding_token", [0, None], ids=["padding", "end token as padding"])
def test_rows_that_have_ended_do_not_count(padding_token):
    model, inputs, ends, steps = ending(padding_token)
    model.generation_config.eos_token_id = ends
    cache = vt.VAttentionCache(model, DENSE, report=True)
    sequences = generated(model, inputs, cache).sequences
    assert sequences[0, 40 + steps] == ends and sequences.shape[1] > 40 + steps + 2
    counts = Counter(entry["sequence"] for entry in cache.report())
    assert counts == {0: 6 * steps, 1: 6 * 15}
    alone = vt.VAttentionCache(model, DENSE, report=True)
    generated(model, {name: part[:1] for name, part in inputs.items()}, alone)
    visible = [
        (entry["layer"], entry["step"], entry["visible"])
        for entry in cache.report()
        if entry["sequence"] == 0
    ]
    assert visible == [
        (entry["layer"], entry["step"], entry["visible"]) for entry in alone.report()
    ]


def test_end_tokens_that_generate_is_given():
    model, inputs, ends, steps = ending()
    for end_tokens, expected in (({ends, 0}, steps), (None, 15)):
        cache = vt.VAttentionCache(model, DENSE, end_tokens=end_tokens, report=True)
        generated(model, inputs, cache, eos_token_id=ends)
        assert sum(entry["sequence"] == 0 for entry in cache.report()) == 6 * expected
    with pytest.raises(ValueError, match="end_tokens: expected the model in place of its config"):
        vt.VAttentionCache(model.config, DENSE, end_tokens=5, report=True)


def test_rows_that_do_not_end_count():
    """Single rows are fed no padding, and neither are those of a model without an end token."""
    model, inputs = checkpoint(), prompt(tokens=40)
    cache = vt.VAttentionCache(model, DENSE, report=True)
    generated(model, inputs, cache)
    assert len(cache.report()) == 6 * 15 * 2
    model.generation_config.eos_token_id = 100
    cache = vt.VAttentionCache(model, DENSE, report=True)
    forward(model, prompt(padding=(0,))["input_ids"], cache)
    forward(model, torch.tensor([[100]]), cache)
    assert len(cache.report()) == 6


# Prompts in chunks.


@pytest.mark.parametrize("pipeline", [LEARNS, SAMPLES], ids=["learns", "samples"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("padding", [(0,), (30, 0)], ids=["one", "padded"])
def test_a_prompt_in_chunks_equals_a_whole_one(name, padding, pipeline):
    model, inputs = checkpoint(name), prompt(tokens=150, padding=padding)
    whole = vt.VAttentionCache(model.config, pipeline, report=True)
    expected = generated(model, inputs, whole)
    for chunk, options in (
        (40, {}),
        (11, {}),
        (149, {"prompt_tokens": 150}),
        (1, {"prompt_tokens": 150}),
    ):
        cache = vt.VAttentionCache(model.config, pipeline, **options, report=True)
        assert_same(generated(model, inputs, cache, prefill_chunk_size=chunk), expected)
        steps = [(entry["layer"], entry["step"], entry["visible"]) for entry in cache.report()]
        assert steps == [
            (entry["layer"], entry["step"], entry["visible"]) for entry in whole.report()
        ]


def test_a_lossy_pipeline_changes_the_logits():
    """The test of chunks relies on a pipeline that is far from dense."""
    model, inputs = checkpoint(), prompt(tokens=150, padding=(0,))
    dense = generated(model, inputs)
    lossy = generated(model, inputs, vt.VAttentionCache(model.config, LEARNS))
    assert (dense.logits[1] - lossy.logits[1]).abs().max() > 100 * TOLERANCE


def test_a_second_prompt_is_not_a_chunk():
    model = checkpoint()
    cache = filled(model, batch=1, steps=1)
    forward(model, torch.tensor([[1, 2, 3]]), cache)
    assert [entry["rows"] for entry in cache.report()[:2]] == [4, 12]
    ended = filled(model, batch=1, prompt_tokens=30)
    forward(model, torch.tensor([[1, 2, 3]]), ended)
    assert ended.report()[0]["rows"] == 12
    with pytest.raises(ValueError, match="prompt_tokens: expected 1 or more, got 0"):
        vt.VAttentionCache(model.config, DENSE, prompt_tokens=0, report=True)


@pytest.mark.parametrize("padding", [(0,), (6, 0)], ids=["one", "padded"])
@pytest.mark.parametrize("removed", [1, 10])
def test_a_prompt_is_cropped(removed, padding):
    """Selectors are shown the last queries before the cropped tokens."""
    model, inputs = checkpoint(), prompt(tokens=150, padding=padding)
    cropped, short = (
        vt.VAttentionCache(model.config, LEARNS, report=True),
        vt.VAttentionCache(model.config, LEARNS, report=True),
    )
    with torch.no_grad():
        model(**inputs, **{CACHE: cropped})
        model(**{name: part[:, :-removed] for name, part in inputs.items()}, **{CACHE: short})
    cropped.crop(-removed)
    assert cropped.get_seq_length() == short.get_seq_length()
    mask = torch.cat(
        [inputs["attention_mask"][:, :-removed], torch.ones(len(padding), 1, dtype=int)], 1
    )
    step = {"input_ids": torch.full((len(padding), 1), 9), "attention_mask": mask}
    with torch.no_grad():
        logits = [model(**step, **{CACHE: cache}).logits for cache in (cropped, short)]
    assert logits[0].shape == logits[1].shape
    densities = [[entry["density"] for entry in cache.report()] for cache in (cropped, short)]
    assert densities[0] == densities[1]
    assert max(densities[0]) < 1


# Copies.


@pytest.mark.parametrize("steps", [0, 2], ids=["prompt", "steps"])
@pytest.mark.parametrize(
    "pipeline",
    [DENSE, LEARNS, SAMPLES, Pipeline.load("h2o")],
    ids=["dense", "learns", "samples", "learns from steps"],
)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_copy_continues_as_the_original_would(name, pipeline, steps):
    model = checkpoint(name)
    cache = filled(model, pipeline, batch=2, tokens=150, steps=steps)
    expected = filled(model, pipeline, batch=2, tokens=150, steps=steps)
    copied = copy.deepcopy(cache)
    for step in range(3):
        ids = torch.tensor([[20 + step], [30 + step]])
        logits = forward(model, ids, expected)
        assert torch.equal(forward(model, ids, copied), logits)
    assert cache.get_seq_length() == 150 + steps, "the original is unchanged"
    assert [len(reported.report()) for reported in (cache, copied)] == [
        count * len(cache._ours) * 2 for count in (steps, steps + 3)
    ]
    assert torch.equal(
        forward(model, torch.tensor([[20], [30]]), cache),
        forward(
            model,
            torch.tensor([[20], [30]]),
            filled(model, pipeline, batch=2, tokens=150, steps=steps),
        ),
    )


def test_a_prefix_is_reused():
    """Each question continues from a copy of the prefix's cache, as transformers recommends."""
    model = checkpoint()
    ids = prompt(tokens=80, padding=(0,))["input_ids"]
    prefix = vt.VAttentionCache(model.config, DENSE)
    forward(model, ids, prefix)
    for seed in (3, 4):
        question = torch.cat([ids, prompt(tokens=9, padding=(0,), seed=seed)["input_ids"]], 1)
        inputs = {"input_ids": question, "attention_mask": torch.ones_like(question)}
        for copied in (copy.deepcopy(prefix), prefix.fork()):
            assert_same(generated(model, inputs, copied), generated(model, inputs))


def test_forks_have_samples_of_their_own():
    model = checkpoint()
    for steps in (0, 1):
        cache = filled(model, SAMPLES, batch=1, tokens=1500, steps=steps, fall_back="never")
        forks = [cache.fork(), cache.fork(), cache.fork().fork()]
        caches = [cache, *forks]
        assert len({number for forked in caches for number in forked.layers[0].numbers}) == 4
        logits = [forward(model, torch.tensor([[7]]), forked) for forked in caches]
        assert all((first != second).any() for first, second in pairwise(logits))


def test_a_copy_belongs_to_the_same_model():
    model = checkpoint()
    copied = copy.deepcopy(filled(model, batch=1))
    with pytest.raises(RuntimeError, match="filled by another model"):
        forward(checkpoint(seed=1), torch.tensor([[7]]), copied)
    copied = copy.deepcopy(filled(model, batch=1))
    model.set_attn_implementation("sdpa")
    with pytest.raises(RuntimeError, match="the model's attention is `sdpa`"):
        forward(model, torch.tensor([[7]]), copied)


def saved_by_torch(cache):
    file = io.BytesIO()
    torch.save(cache, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "save",
    [lambda cache: pickle.loads(pickle.dumps(cache)), saved_by_torch],
    ids=["pickle", "torch.save"],
)
@pytest.mark.parametrize("pipeline", [LEARNS, SAMPLES], ids=["learns", "samples"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_prompt_is_saved(name, pipeline, save):
    model = checkpoint(name)
    cache = filled(model, pipeline, batch=2, tokens=150, threads=1)
    loaded = save(cache)
    for step in range(2):
        ids = torch.tensor([[20 + step], [30 + step]])
        assert torch.equal(forward(model, ids, loaded), forward(model, ids, cache))
    with pytest.raises(
        TypeError, match=r"has attended by its pipeline; .*save the cache before its first step"
    ):
        save(cache)
    cache.reset()
    assert save(cache).get_seq_length() == 0


def test_a_loaded_prompt_is_cropped_beyond_its_queries():
    model = checkpoint()
    loaded = pickle.loads(pickle.dumps(filled(model, batch=2, tokens=150)))
    loaded.crop(-100)
    short = filled(model, batch=2, tokens=150)
    short.crop(-100)
    ids = torch.tensor([[1], [2]])
    assert torch.equal(forward(model, ids, loaded), forward(model, ids, short))
    assert loaded.get_seq_length() == 51


def test_a_loaded_cache_belongs_to_its_first_model():
    model = checkpoint()
    loaded = pickle.loads(pickle.dumps(filled(model, batch=1)))
    forward(model, torch.tensor([[7]]), loaded)
    with pytest.raises(RuntimeError, match="filled by another model"):
        forward(checkpoint(seed=1), torch.tensor([[7]]), loaded)


def test_crop_advises_to_copy_before():
    model = checkpoint()
    cache = filled(model, Pipeline.load("h2o"), batch=1, steps=1)
    before = cache.fork()
    expected = copy.deepcopy(cache)
    ids = torch.tensor([[9]])
    forward(model, ids, cache)
    with pytest.raises(
        RuntimeError,
        match=r"crop: layer 0: a selector learns from steps.*fork\(\) or copy.deepcopy",
    ):
        cache.crop(-1)
    assert torch.equal(forward(model, ids, before), forward(model, ids, expected))


def test_crop_into_padding():
    model, inputs = checkpoint(), prompt(tokens=20, padding=(15, 0))
    cache = vt.VAttentionCache(model.config, DENSE)
    generated(model, inputs, cache, max_new_tokens=3)
    cache.crop(-10)
    assert [len(attention) for attention in cache.layers[0].sequences] == [0, 12]
    cache.crop(-1000)
    assert cache.get_seq_length() == 0


# Models that call no attention function.


def test_models_without_attention_functions():
    torch.manual_seed(0)
    config = transformers.BloomConfig(vocab_size=101, hidden_size=32, n_layer=2, n_head=2)
    model = transformers.BloomForCausalLM(config).eval()
    model.set_attn_implementation("vattention")
    with pytest.raises(
        RuntimeError, match="if that was done, Bloom.* has attention code of its own"
    ):
        forward(model, prompt(padding=(0,))["input_ids"], vt.VAttentionCache(model.config, DENSE))
    config._attn_implementation = "vattention"
    with pytest.raises(
        RuntimeError,
        match="layer 0 did not call the attention function 'vattention'.*Bloom.* of its own",
    ):
        forward(model, prompt(padding=(0,))["input_ids"], vt.VAttentionCache(model.config, DENSE))
