#!/usr/bin/env python3
"""Capture a trace (queries, keys and values) from a causal language model in a Hugging Face folder.

    pip install torch==2.15.0 safetensors==0.8.0 transformers==5.23.0
    python tools/capture_hf.py models/recall --text text.txt -o trace.safetensors
    python tools/capture_hf.py Llama-3.2-1B --text book.txt --tokens 32768 --layers 0,7,15 \\
        -o trace.safetensors

Pipelines can be compared on a trace, without the model. The model reads a text once, with its own
attention. The trace has the queries, keys and values of attention, with rotary embeddings applied
to queries and keys; docs/guide.md describes the format. The trace replays decoding: the last
--queries tokens of the text count as decoded, and each sees the tokens up to its own. The
--prompt-queries tokens before them are the end of the prompt.

The model must use the attention interface of `transformers`, as Llama, Mistral, Qwen, Gemma,
gpt-oss, Phi and most others do. Layers with a sliding window or chunks shorter than the text are
skipped with a note. Soft caps of logits (Gemma 2) and learned sinks (gpt-oss) are written to the
trace. Models that add a bias to their logits are refused. The model computes in f32 on a CPU, in
its own type on a GPU. For each layer, attention from the captured tensors is compared with the
model's, and the effect of rounding to the type of the file is printed.

Exit codes: 0 success, 1 the comparison failed (nothing is written), 2 invalid input, 130
interrupted (nothing is written).
"""

import argparse
import hashlib
import math
import os
import re
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

# The argument is a folder; a mistyped one must not start a download.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
except ImportError as missing:
    print(
        f"capture_hf: {missing}; install the packages listed in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
# Largest relative difference from the model's attention, by the type in which the model computes.
TOLERANCE = {
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
    torch.float32: 1e-4,
}
NAME = "capture"
UNSUPPORTED = {"position_bias": "adds a bias to its logits"}
QUERIES_TOGETHER = 256
"""Number of queries whose logits are in memory together, in layers with soft caps or sinks."""


class InputError(Exception):
    """Error in the command line or a file; the exit code is 2."""


class CheckFailed(Exception):
    """Error: attention from the trace differs from the model's; the exit code is 1."""


# Recording the arguments of attention.


@dataclass
class Captured:
    """Arguments of a layer's attention."""

    queries: torch.Tensor  # [query_heads, queries, head_dim]
    prompt: torch.Tensor  # [query_heads, prompt, head_dim]
    keys: torch.Tensor  # [kv_heads, tokens, head_dim]
    values: torch.Tensor  # [kv_heads, tokens, value_dim]
    scale: float
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None  # [query_heads]

    def convert(self, dtype):
        """Returns the tensors rounded to the type of the file."""
        parts = {
            part: getattr(self, part).to(dtype) for part in ("queries", "prompt", "keys", "values")
        }
        for part, tensor in parts.items():
            if not tensor.isfinite().all():
                raise InputError(
                    f"{part} have numbers that the file's type cannot hold: "
                    "expected --dtype bf16 or f32"
                )
        return replace(self, **parts)

    def attend(self):
        """Returns exact attention in f64, `[query_heads, queries, value_dim]`."""
        count, tokens = self.queries.shape[1], self.keys.shape[1]
        group = self.queries.shape[0] // self.keys.shape[0]
        positions = torch.arange(tokens)
        hidden = positions > positions[-count:, None]
        outputs = []
        for head, queries in enumerate(self.queries.double()):
            logits = self.scale * queries @ self.keys[head // group].double().T
            sink = None if self.sinks is None else self.sinks[head].double()
            weights = softmax(logits, hidden, self.soft_cap, sink)
            outputs.append(weights @ self.values[head // group].double())
        return torch.stack(outputs)


def softmax(logits, hidden, soft_cap, sinks):
    """Returns the weights of scaled logits `[..., queries, tokens]`.

    Logits are capped, and hidden tokens have no weight. A sink adds its exponential to the
    denominators; `sinks` is None or has one for each item of the first dimensions of the logits.
    """
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    logits = logits.masked_fill(hidden, -math.inf)
    if sinks is None:
        return logits.softmax(-1)
    sinks = sinks[..., None, None].expand(*logits.shape[:-1], 1).to(logits.dtype)
    return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]


def attend(query, key, value, mask, options):
    """Computes attention with a soft cap or sinks, which torch's fused attention does not have.

    The shapes of arguments and result are those of the attention interface of `transformers`.
    """
    group = query.shape[1] // key.shape[1]
    keys, values = (part.repeat_interleave(group, 1).float() for part in (key, value))
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    positions = torch.arange(key.shape[2], device=key.device)
    outputs = []
    for first in range(0, query.shape[2], QUERIES_TOGETHER):
        queries = query[:, :, first : first + QUERIES_TOGETHER]
        rows = slice(first, first + queries.shape[2])
        if mask is None:
            hidden = positions > positions[rows, None]
        else:
            seen = mask[:, :, rows, : key.shape[2]]
            hidden = ~seen if seen.dtype == torch.bool else seen != 0
        logits = scale * queries.float() @ keys.transpose(2, 3)
        weights = softmax(logits, hidden, options.get("softcap"), options.get("s_aux"))
        outputs.append((weights @ values).to(query.dtype))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous()


class Recorder:
    """Attention function of `transformers` that stores the arguments of some layers.

    `layers=None` means all layers.
    """

    def __init__(self, layers, queries, prompt, dtype):
        self.layers, self.queries, self.prompt, self.dtype = layers, queries, prompt, dtype
        self.captured, self.skipped = {}, {}

    def __call__(self, module, query, key, value, attention_mask, **options):
        layer = getattr(module, "layer_idx", None)
        refuse_unsupported(layer, module, query, key, options)
        weights = None
        if options.get("softcap") is None and options.get("s_aux") is None:
            outputs, weights = sdpa_attention_forward(
                module, query, key, value, attention_mask, **options
            )
        else:
            outputs = attend(query, key, value, attention_mask, options)
        if self.layers is None or layer in self.layers:
            if is_causal(attention_mask, query.shape[2], self.queries + self.prompt):
                self.store(layer, query, key, value, options, outputs)
            else:
                window = options.get("sliding_window")
                self.skipped[layer] = (
                    f"a sliding window of {window}"
                    if window
                    else "only a part of the earlier tokens"
                )
        return outputs, weights

    def store(self, layer, query, key, value, options, outputs):
        decoded = query.shape[2] - self.queries
        scale, sinks = options.get("scaling"), options.get("s_aux")
        copy = lambda tensor: tensor[0].cpu().contiguous()
        captured = Captured(
            queries=copy(query[:, :, decoded:]),
            prompt=copy(query[:, :, decoded - self.prompt : decoded]),
            keys=copy(key),
            values=copy(value),
            scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
            soft_cap=options.get("softcap"),
            sinks=None if sinks is None else sinks.detach().float().cpu(),
        )
        stored, exact = captured.convert(self.dtype), captured.attend()
        difference = distance(outputs[0, decoded:].transpose(0, 1).cpu(), exact)
        rounding = distance(stored.attend(), exact)
        limit = TOLERANCE[query.dtype]
        print(
            f"layer {layer}: difference from the model's attention {difference:.1e}, "
            f"by rounding {rounding:.1e}",
            flush=True,
        )
        if not difference <= limit:
            raise CheckFailed(
                f"layer {layer}: attention from the captured tensors differs from the model's by "
                f"{difference:.1e}; expected at most {limit:g}"
            )
        self.captured[layer] = stored


def distance(found, exact):
    """Returns the largest difference, relative to the largest magnitude."""
    return ((found - exact).abs().max() / exact.abs().max()).item()


def refuse_unsupported(layer, module, query, key, options):
    for option, fault in UNSUPPORTED.items():
        if options.get(option) is not None:
            raise InputError(
                f"layer {layer} {fault} ({option}): "
                "expected attention that is a softmax of dot products"
            )
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if layer is None or not causal or query.shape[2] != key.shape[2]:
        raise InputError(
            f"{type(module).__name__} is not causal self-attention: expected a decoder-only model"
        )


def is_causal(mask, tokens, rows):
    """Returns True if each of the last rows sees exactly the tokens up to its own.

    A missing mask means a causal one.
    """
    if mask is None:
        return True
    seen = mask[..., -rows:, :] if mask.dtype == torch.bool else mask[..., -rows:, :] == 0
    positions = torch.arange(tokens, device=mask.device)
    return bool((seen == (positions <= positions[-rows:, None])).all())


# Model and text.


def load(folder, device):
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json; expected a model's folder of Hugging Face")
    dtype = torch.float32 if device == "cpu" else "auto"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=NAME
        )
        return tokenizer, model.to(device).eval()
    except Exception as error:  # Damaged and unknown folders raise many kinds of exceptions.
        reason = " ".join(str(error).split())
        raise InputError(f"{folder}: {reason}; expected a causal model and its tokenizer")


def read_tokens(path, tokenizer, count, positions):
    """Returns the first `count` tokens of the text, and their description.

    By default, all tokens are read for which the model has positions.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"--text {path}: expected UTF-8 text")
    except OSError as error:
        raise InputError(f"--text {path}: {error.strerror}; expected a readable text file")
    ids = tokenizer(text, verbose=False)["input_ids"]
    if count is not None and count > len(ids):
        raise InputError(f"--tokens {count}: expected at most {len(ids)}, the tokens of {path}")
    if count is not None and positions and count > positions:
        raise InputError(
            f"--tokens {count}: expected at most {positions}, the positions of the model"
        )
    count = count or min(len(ids), positions or len(ids))
    sha256 = hashlib.sha256(text.encode()).hexdigest()[:16]
    return ids[:count], f"{path.name} (sha256 {sha256}), {count} of {len(ids)} tokens"


@torch.no_grad()
def record(model, ids, recorder):
    transformers.AttentionInterface.register(NAME, recorder)
    try:
        model.get_decoder()(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    except torch.OutOfMemoryError:
        raise InputError(
            f"--tokens {len(ids)}: not enough memory on {model.device}; expected fewer tokens"
        )
    if not recorder.captured and not recorder.skipped:
        raise InputError(
            "the model does not use the attention interface of transformers; "
            "expected another architecture, such as Llama"
        )


# The trace.


def common_scale(captured):
    """Returns the scale of all layers; None means 1/sqrt(head_dim)."""
    usual = all(
        math.isclose(c.scale, c.keys.shape[-1] ** -0.5, rel_tol=1e-6) for c in captured.values()
    )
    scales = sorted({layer.scale for layer in captured.values()})
    if not usual and len(scales) > 1:
        raise InputError(f"--layers: expected layers of one scale, found the scales {scales}")
    return None if usual else scales[0]


def tensors_of(captured):
    tensors = {}
    for number, layer in captured.items():
        tokens, count = layer.keys.shape[1], layer.queries.shape[1]
        parts = {"queries": layer.queries, "keys": layer.keys, "values": layer.values}
        parts["visible"] = torch.arange(tokens - count + 1, tokens + 1)
        if layer.prompt.shape[1]:
            parts["prompt"] = layer.prompt
            parts["prompt_tokens"] = torch.tensor([tokens - count])
        if layer.soft_cap is not None:
            parts["soft_cap"] = torch.tensor([layer.soft_cap], dtype=torch.float32)
        if layer.sinks is not None:
            parts["sink_logits"] = layer.sinks
        tensors |= {f"layers.{number}.{part}": tensor for part, tensor in parts.items()}
    return tensors


def write(path, tensors, metadata):
    """Writes a file beside the path, and renames it."""
    beside = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, beside, metadata)
        os.replace(beside, path)
    except OSError as error:
        raise InputError(f"-o {path}: {error.strerror}; expected a file that can be written")
    finally:
        beside.unlink(missing_ok=True)


# The command line.


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(message)


def parse_arguments():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model, with its tokenizer")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text")
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="FILE", help="write this trace"
    )
    parser.add_argument(
        "--layers", help="numbers or ranges such as 9-23, separated by commas (default: all)"
    )
    parser.add_argument(
        "--tokens", type=int, help="tokens to read (default: all, up to the model's positions)"
    )
    parser.add_argument(
        "--queries", type=int, default=32, help="last tokens, which count as decoded (default 32)"
    )
    parser.add_argument(
        "--prompt-queries",
        type=int,
        default=64,
        help="tokens before these, the end of the prompt (default 64)",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="f16", help="type of the tensors (default f16)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args()


def parse_layers(text, count):
    """Parses --layers; None means all layers."""
    if text is None:
        return None
    expected = (
        f"expected different numbers from 0 to {count - 1}, or ranges such as 0-{count - 1}, "
        "separated by commas"
    )
    chosen = [number for part in text.split(",") for number in parse_range(part, count)]
    if not chosen or None in chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"--layers {text}: {expected}")
    return chosen


def parse_range(text, count):
    """Parses `3`, `9-23` or `9..24` (without its end); returns `[None]` if the text is wrong."""
    match = re.fullmatch(r"(\d{1,6})(?:(-|\.\.)(\d{1,6}))?", text.strip(), re.ASCII)
    if match is None:
        return [None]
    first = int(match[1])
    last = first if match[2] is None else int(match[3]) - (match[2] == "..")
    return range(first, last + 1) if first <= last < count else [None]


def validate(args):
    for option, value, least in [
        ("--queries", args.queries, 1),
        ("--prompt-queries", args.prompt_queries, 0),
    ]:
        if value < least:
            raise InputError(f"{option} {value}: expected at least {least}")
    if args.tokens is not None and args.tokens < 1:
        raise InputError(f"--tokens {args.tokens}: expected at least 1")
    if args.output.is_dir() or not args.output.parent.is_dir():
        raise InputError(f"-o {args.output}: expected a file in an existing folder")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no device found; expected cpu")


def run(args):
    validate(args)
    recorder = Recorder(None, args.queries, args.prompt_queries, DTYPES[args.dtype])
    transformers.AttentionInterface.register(NAME, recorder)
    transformers.AttentionMaskInterface.register(NAME, sdpa_mask)
    tokenizer, model = load(args.model, args.device)
    config = model.config.get_text_config()
    recorder.layers = parse_layers(args.layers, config.num_hidden_layers)
    ids, source = read_tokens(
        args.text, tokenizer, args.tokens, getattr(config, "max_position_embeddings", None)
    )
    if len(ids) < args.queries + max(args.prompt_queries, 1):
        need = f"{args.queries} queries and a prompt of {max(args.prompt_queries, 1)}"
        raise InputError(f"--text: {len(ids)} tokens; expected at least {need}")
    record(model, ids, recorder)
    for layer, why in sorted(recorder.skipped.items()):
        if args.layers:
            raise InputError(
                f"--layers {args.layers}: layer {layer} sees {why}; "
                "expected layers that see all earlier tokens"
            )
        print(f"layer {layer} is skipped: it sees {why}", file=sys.stderr)
    if not recorder.captured:
        raise InputError(
            "no layer sees all earlier tokens: expected at most as many --tokens as the sliding "
            "window has"
        )
    scale = common_scale(recorder.captured)
    metadata = {
        "format": "vattention-trace/1",
        "model": f"{args.model.resolve().name} ({type(model).__name__})",
        "source": source,
    }
    if scale is not None:
        metadata["scale"] = repr(scale)
    write(args.output, tensors_of(recorder.captured), metadata)
    size = args.output.stat().st_size
    print(f"{args.output}: {len(recorder.captured)} layers, {len(ids)} tokens, {size} bytes")


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    signal.signal(signal.SIGTERM, interrupt)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        run(parse_arguments())
    except InputError as error:
        print(f"capture_hf: {error}", file=sys.stderr)
        return 2
    except CheckFailed as error:
        print(f"capture_hf: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("capture_hf: interrupted, nothing was written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
