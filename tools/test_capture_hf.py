#!/usr/bin/env python3
"""Tests of capture_hf.py on small random models, to be run by hand.

    python tools/test_capture_hf.py

Attention computed from the file, row by row, is compared with the input of the output projection
in a second run of the model, with its own `eager` attention.
"""

import contextlib
import io
import random
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
import transformers
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers

import capture_hf

WORDS = [f"w{i}" for i in range(60)]
TOKENS, QUERIES, PROMPT = 100, 8, 16
SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def make(folder, config):
    """Makes a random model whose attention is far from uniform, and a tokenizer of words."""
    torch.manual_seed(7)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            # As large as the largest logits.
            parameter.data.normal_(12, 2)
        elif "norm" not in name:
            parameter.data.normal_(0, 2.5 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    vocabulary = {
        word: number for number, word in enumerate(["<s>", "</s>", "<pad>", "<unk>", *WORDS])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}'
    )
    (folder / "text.txt").write_text(" ".join(random.Random(3).choices(WORDS, k=150)))
    return model


def capture(folder, *options):
    """Runs capture_hf, and returns its exit code, the text of stderr and the path of the trace."""
    path = folder / "trace.safetensors"
    path.unlink(missing_ok=True)
    sizes = [
        "--tokens",
        str(TOKENS),
        "--queries",
        str(QUERIES),
        "--prompt-queries",
        str(PROMPT),
        "--dtype",
        "f32",
    ]
    arguments = [
        "capture_hf",
        str(folder),
        "--text",
        str(folder / "text.txt"),
        "-o",
        str(path),
        *sizes,
        *options,
    ]
    errors = io.StringIO()
    with (
        mock.patch.object(sys, "argv", arguments),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = capture_hf.main()
    assert not list(folder.glob("*.partial")), "expected no partial file"
    assert path.exists() == (code == 0), (code, errors.getvalue())
    return code, errors.getvalue(), path


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


@torch.no_grad()
def projection_inputs(model, folder):
    """Returns the input of each layer's output projection for the last tokens.

    Each tensor has the shape `[queries, query_heads * value_dim]`.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer((folder / "text.txt").read_text())["input_ids"][:TOKENS]
    assert len(set(ids)) > 40, (
        "expected many different tokens, because few tokens have uniform attention"
    )
    inputs = []
    for layer in model.get_decoder().layers:
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, arguments: inputs.append(arguments[0][0, -QUERIES:])
        )
    model(torch.tensor([ids]), use_cache=False)
    return inputs


def attend(tensors, layer, metadata):
    """Computes the attention of the file's queries, one row at a time."""
    cap = tensors.get(f"layers.{layer}.soft_cap")
    sinks = tensors.get(f"layers.{layer}.sink_logits", torch.full([4], -torch.inf))
    get = lambda part: tensors[f"layers.{layer}.{part}"].double()
    queries, keys, values, visible = (
        get("queries"),
        get("keys"),
        get("values"),
        tensors[f"layers.{layer}.visible"].tolist(),
    )
    scale = float(metadata.get("scale", queries.shape[-1] ** -0.5))
    rows = []
    for i, seen in enumerate(visible):
        heads = []
        for head in range(queries.shape[0]):
            kv_head = head // (queries.shape[0] // keys.shape[0])
            logits = scale * keys[kv_head, :seen] @ queries[head, i]
            if cap is not None:
                logits = cap.item() * torch.tanh(logits / cap.item())
            weights = torch.exp(logits)
            total = weights.sum() + sinks[head].double().exp()
            heads.append(weights @ values[kv_head, :seen] / total)
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def expect_faithful(name, config, layers, scale=None, dtype="f32", limit=1e-4, form=()):
    """Captures a model and checks the trace, whose layers have the further tensors of `form`."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = make(folder, config)
        code, errors, path = capture(folder, "--dtype", dtype)
        assert code == 0, errors
        tensors, metadata = read(path)
        assert sorted({int(key.split(".")[1]) for key in tensors}) == layers, sorted(tensors)
        assert (None if scale is None else float(metadata["scale"])) == scale and (
            "scale" in metadata
        ) == (scale is not None)
        outputs = projection_inputs(model, folder)
        for layer in layers:
            shapes = {
                part: list(tensors[f"layers.{layer}.{part}"].shape)
                for part in ("queries", "keys", "values", "prompt")
            }
            assert shapes == {
                "queries": [4, QUERIES, 16],
                "keys": [2, TOKENS, 16],
                "values": [2, TOKENS, 16],
                "prompt": [4, PROMPT, 16],
            }
            for part in ("soft_cap", "sink_logits"):
                assert (f"layers.{layer}.{part}" in tensors) == (part in form), sorted(tensors)
            found, expected = attend(tensors, layer, metadata), outputs[layer]
            worst = ((found - expected).abs().max() / expected.abs().max()).item()
            assert worst <= limit, f"{name}, layer {layer}: differs by {worst:.1e}"
            expect_prompt_before(folder, tensors, layer, dtype)
        print(f"{name} ({dtype}): layers {layers}, the last differs by {worst:.1e}")


def expect_prompt_before(folder, tensors, layer, dtype):
    """Checks that the prompt's queries are those of the tokens before the decoded ones."""
    _, _, path = capture(folder, "--dtype", dtype, "--queries", str(QUERIES + PROMPT))
    queries = read(path)[0][f"layers.{layer}.queries"]
    assert torch.equal(queries[:, :PROMPT], tensors[f"layers.{layer}.prompt"])
    assert tensors[f"layers.{layer}.prompt_tokens"].tolist() == [TOKENS - QUERIES]
    assert torch.equal(queries[:, PROMPT:], tensors[f"layers.{layer}.queries"])


def expect_refusals(config, refusals):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make(folder, config)
        for options, message in refusals:
            code, errors, _ = capture(folder, *options)
            assert code == 2 and message in errors, (options, code, errors)
            print(f"refused: {errors.splitlines()[-1].replace(str(folder), 'FOLDER')}")


def expect_nothing_after(error, code):
    """Checks that an error while the file is written leaves no file, not even a partial one."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make(folder, transformers.LlamaConfig(**SIZES))

        def half(_, path, *rest):
            Path(path).write_bytes(b"half")
            raise error

        with mock.patch.object(capture_hf, "save_file", half):
            found, errors, _ = capture(folder)
        assert found == code, (found, errors)
        print(f"{type(error).__name__} while writing: exit {found}, nothing left")


def expect_check_fails():
    """Checks that a wrong scale is found before anything is written."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        make(folder, transformers.LlamaConfig(**SIZES))
        forward = capture_hf.sdpa_attention_forward
        wrong = lambda *args, **options: forward(*args, **options | {"scaling": 0.3})
        with mock.patch.object(capture_hf, "sdpa_attention_forward", wrong):
            code, errors, _ = capture(folder)
        assert code == 1, (code, errors)
        print(f"another scale: {errors.strip()}")


def main():
    transformers.logging.disable_progress_bar()
    llama = transformers.LlamaConfig(**SIZES)
    expect_faithful("llama", llama, [0, 1, 2, 3])
    expect_faithful("llama", llama, [0, 1, 2, 3], dtype="f16", limit=2e-2)
    expect_faithful("llama", llama, [0, 1, 2, 3], dtype="bf16", limit=2e-1)
    expect_faithful("qwen3", transformers.Qwen3Config(**SIZES), [0, 1, 2, 3])
    expect_faithful(
        "mistral, wide window",
        transformers.MistralConfig(**SIZES, sliding_window=128),
        [0, 1, 2, 3],
    )
    kinds = ["sliding_attention", "full_attention"] * 2
    gemma3 = transformers.Gemma3TextConfig(
        **SIZES, sliding_window=20, layer_types=kinds, query_pre_attn_scalar=64
    )
    expect_faithful("gemma3, every other layer slides", gemma3, [1, 3], scale=0.125)
    expect_refusals(gemma3, [(["--layers", "1,2"], "layer 2 sees a sliding window of 20")])
    expect_refusals(
        transformers.MistralConfig(**SIZES, sliding_window=20),
        [([], "no layer sees all earlier tokens")],
    )
    gemma2 = transformers.Gemma2Config(
        **SIZES, sliding_window=20, query_pre_attn_scalar=64, attn_logit_softcapping=2.0
    )
    expect_faithful("gemma2, soft cap", gemma2, [1, 3], scale=0.125, form=["soft_cap"])
    gpt_oss = transformers.GptOssConfig(
        **SIZES, sliding_window=20, num_local_experts=2, num_experts_per_tok=1
    )
    sinks = ["sink_logits"]
    expect_faithful("gpt-oss, sinks", gpt_oss, [1, 3], form=sinks)
    expect_faithful("gpt-oss, sinks", gpt_oss, [1, 3], dtype="bf16", limit=2e-1, form=sinks)
    assert capture_hf.parse_layers("0-1, 3", 4) == [0, 1, 3] == capture_hf.parse_layers("0..2,3", 4)
    expect_refusals(llama, [
        (["--layers", "4"], "--layers 4"),
        (["--layers", "1,1"], "--layers 1,1"),
        (["--layers", "0-2,1"], "--layers 0-2,1"),
        (["--layers", "2-4"], "--layers 2-4"),
        (["--layers", "2-1"], "--layers 2-1"),
        (["--layers", "0-"], "--layers 0-"),
        (["--tokens", "151"], "--tokens 151: expected at most 150, the tokens of "),
        (["--tokens", "20"], "expected at least 8 queries and a prompt of 16"),
        (["--queries", "0"], "--queries 0"),
        (["--dtype", "f64"], "--dtype"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
        (["-o", "nowhere/trace"], "expected a file in an existing folder"),
    ])  # fmt: skip
    expect_nothing_after(KeyboardInterrupt(), 130)
    expect_nothing_after(OSError(28, "No space left on device"), 2)
    expect_check_fails()
    print("all fine")


if __name__ == "__main__":
    main()
