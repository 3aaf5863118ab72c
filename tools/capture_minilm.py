"""Capture a trace (queries, keys and values) from the pretrained encoder all-MiniLM-L6-v2.

Why: attention of a real model on real text, small enough to ship. The model sees 512 positions, so a
long memory is the concatenation of separately encoded chunks of 512 tokens: [CLS] 510 tokens [SEP].
The queries come from one further chunk, at evenly spread positions; every query sees all tokens. The
prompt queries are those of the memory's last tokens. Layers keep the model's numbers; heads are
renumbered from 0, and the metadata says which of the model's they are. Every capture is checked
against a second, plainly written forward pass before the file is written.

    pip install --no-deps -r tools/requirements.txt
    python tools/capture_minilm.py -o data/minilm.safetensors
    python tools/capture_minilm.py --text book.txt --chunks 256 --layers 0,5 --heads all -o long.safetensors
    python tools/capture_minilm.py --check

Exit codes: 0 fine, 1 a check failed (nothing is written), 2 the input is wrong.
"""

import argparse
import hashlib
import importlib
import importlib.util
import json
import math
import os
import sys
from pathlib import Path

try:
    import numpy as np
    from safetensors.numpy import load_file

    import minilm
except ImportError as missing:
    print(f"capture_minilm: {missing}: expected the packages of tools/requirements.txt", file=sys.stderr)
    sys.exit(2)

LICENCES = Path("/usr/share/common-licenses")
DEFAULT_TEXT = ["Apache-2.0", "MPL-2.0", "Artistic", "GPL-3", "GFDL-1.3", "LGPL-2.1", "GPL-2", "MPL-1.1"]
CLS, SEP = 101, 102
DTYPES = {"f16": "<f2", "f32": "<f4"}
PARAPHRASES = ["A man plays a song on his guitar.", "Someone is performing music with a guitar."]
UNRELATED = "The court rejected the company's tax appeal."
PARAPHRASE_MARGIN = 0.4
FORWARD_TOLERANCE = 1e-9
STORED_TOLERANCE = {"f16": 4e-3, "f32": 1e-6}
EMBEDDING_TOLERANCE = 1e-5


class InputError(Exception):
    """The command line or a file is wrong: exit 2."""


class CheckFailed(Exception):
    """The capture disagrees with its check: exit 1."""


# The text.


def read_text(path):
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"--text {path}: expected UTF-8 text")
    except OSError as error:
        raise InputError(f"--text {path}: {error.strerror}; expected a readable text file")


def tokenize(model, texts, needed):
    """The first `needed` tokens of the (path, text) pairs, and a description of the files they come from."""
    ids, used = [], []
    for path, text in texts:
        if len(ids) < needed:
            ids += model.tokenizer.encode(text, add_special_tokens=False).ids
            used.append(f"{path.name} (sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]})")
    return ids[:needed], ", ".join(used)


def split_chunks(model, ids):
    body = model.positions - 2
    return [[CLS, *ids[start : start + body], SEP] for start in range(0, len(ids), body)]


# The capture.


def spread(count, positions):
    """`count` positions at equal distances between [CLS] and [SEP]."""
    body = positions - 2
    return [1 + (2 * i + 1) * body // (2 * count) for i in range(count)]


def capture(model, chunks, args):
    """The trace's tensors. The last chunk gives the queries, the others the memory."""
    encoded = []
    for chunk in chunks:
        _, captured = minilm.forward(model, chunk)
        encoded.append({l: [x[args.heads].astype(DTYPES[args.dtype]) for x in captured[l]] for l in args.layers})
    *memory, further = encoded
    tensors = {}
    for layer in args.layers:
        tensors[f"layers.{layer}.queries"] = further[layer][0][:, spread(args.queries, model.positions)]
        tensors[f"layers.{layer}.keys"] = np.concatenate([chunk[layer][1] for chunk in memory], axis=1)
        tensors[f"layers.{layer}.values"] = np.concatenate([chunk[layer][2] for chunk in memory], axis=1)
        tensors[f"layers.{layer}.prompt"] = memory[-1][layer][0][:, -args.prompt_queries :]
    return tensors


def stored(tensors, layer, *names):
    """A layer's tensors as the file holds them, in f64 for the checks."""
    return [tensors[f"layers.{layer}.{name}"].astype(np.float64) for name in names]


# The checks. Differences are relative to the largest magnitude.


def measure(what, value, holds, expected):
    print(f"  {what}: {value:.3g} (expected {expected})")
    if not holds:
        raise CheckFailed(f"{what}: {value:.3g}, expected {expected}")


def compare(what, ours, expected, limit):
    value = float(np.abs(ours - expected).max() / np.abs(expected).max())
    measure(what, value, value <= limit, f"at most {limit:g}")


def check_capture(model, chunks, tensors, args):
    """The whole last chunk of the memory, then what the file holds: its queries, its prompt's attention there."""
    hidden, memory = minilm.reference(model, chunks[-2])
    _, further = minilm.reference(model, chunks[-1])
    compare("final hidden states, one chunk", minilm.forward(model, chunks[-2])[0], hidden, FORWARD_TOLERANCE)
    limit = STORED_TOLERANCE[args.dtype]
    for layer in args.layers:
        queries, keys, values, prompt = stored(tensors, layer, "queries", "keys", "values", "prompt")
        expected = minilm.split_heads(model, further[layer][0])[args.heads]
        compare(f"layer {layer}, stored queries", queries, expected[:, spread(args.queries, model.positions)], limit)
        outputs = minilm.attention_weights(prompt, keys[:, -model.positions :]) @ values[:, -model.positions :]
        expected = minilm.split_heads(model, memory[layer][1])[args.heads]
        compare(f"layer {layer}, attention of the stored prompt", outputs, expected[:, -args.prompt_queries :], limit)


def check_embeddings(model):
    one, same, other = (minilm.sentence_embedding(model, sentence) for sentence in [*PARAPHRASES, UNRELATED])
    print(f"  cosine of two paraphrases {one @ same:.3f}, of unrelated sentences {one @ other:.3f}")
    margin = one @ same - one @ other
    measure("difference of the cosines", margin, margin >= PARAPHRASE_MARGIN, f"at least {PARAPHRASE_MARGIN:g}")


def check_package(model):
    """The package's own encoder, where the framework it needs is installed."""
    if importlib.util.find_spec("sentence_transformers") is None:
        print("  the package's own encoder: its framework is not installed, not compared")
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    theirs = importlib.import_module(minilm.PACKAGE).load_model(device="cpu").encode(PARAPHRASES)
    ours = np.array([minilm.sentence_embedding(model, sentence) for sentence in PARAPHRASES])
    compare("embeddings against the package's own encoder", ours, theirs, EMBEDDING_TOLERANCE)


def print_flatness(tensors, args):
    print("share of the softmax mass in the top 5 % of the tokens, mean over queries:")
    for layer in args.layers:
        weights = np.sort(minilm.attention_weights(*stored(tensors, layer, "queries", "keys")), axis=-1)
        shares = weights[..., -math.ceil(0.05 * weights.shape[-1]) :].sum(axis=-1).mean(axis=-1)
        print(f"  layer {layer}: " + ", ".join(f"head {h} {share:.3f}" for h, share in zip(args.heads, shares)))


# The file.


def serialize(tensors, metadata, dtype):
    """Safetensors with a header in a fixed order (the library's own writer shuffles the metadata)."""
    header, offset, names = {"__metadata__": metadata}, 0, sorted(tensors)
    for name in names:
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": dtype.upper(), "shape": tensors[name].shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(tensors[name].tobytes() for name in names)])


def write_trace(path, data, tensors):
    """Written beside, read back, renamed."""
    beside = path.with_name(path.name + ".partial")
    try:
        beside.write_bytes(data)
        back = load_file(beside)
        if any(not np.array_equal(back[name], tensor) for name, tensor in tensors.items()):
            raise CheckFailed(f"{path} does not read back as it was captured")
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
    parser = Parser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    texts = [LICENCES / name for name in DEFAULT_TEXT]
    parser.add_argument("--text", nargs="+", type=Path, default=texts, metavar="FILE", help="UTF-8 text, in this order")
    parser.add_argument("--layers", default="2,4", help="layers of the model between commas, or all")
    parser.add_argument("--heads", default="0,2,6,9", help="heads of each layer between commas, or all")
    parser.add_argument("--chunks", type=int, default=14, help="chunks of 512 tokens in the memory")
    parser.add_argument("--queries", type=int, default=32, help="queries, from the chunk after the memory")
    parser.add_argument("--prompt-queries", type=int, default=16, help="queries of the memory's last tokens")
    parser.add_argument("--dtype", choices=DTYPES, default="f16", help="element type of the file")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE", help="the trace to write")
    parser.add_argument("--check", action="store_true", help="compare with the package's own encoder too; needs no -o")
    return parser.parse_args()


def parse_list(option, text, count):
    """Which of 0..count: `all`, or numbers between commas."""
    allowed = [str(number) for number in range(count)]
    chosen = allowed if text == "all" else text.split(",")
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(allowed):
        raise InputError(f"{option} {text}: expected different numbers from 0 to {count - 1} between commas, or all")
    return [int(number) for number in chosen]


def expect_between(option, value, most=None):
    if value < 1 or (most and value > most):
        raise InputError(f"{option} {value}: expected " + (f"1 to {most}" if most else "at least 1"))


def validate(args, model):
    args.layers = parse_list("--layers", args.layers, model.layers)
    args.heads = parse_list("--heads", args.heads, model.heads)
    expect_between("--chunks", args.chunks)
    expect_between("--queries", args.queries, model.positions - 2)
    expect_between("--prompt-queries", args.prompt_queries, model.positions)
    if args.output is None and not args.check:
        raise InputError("-o: expected a file to write, or --check")
    if args.output and (args.output.is_dir() or not args.output.parent.is_dir()):
        raise InputError(f"-o {args.output}: expected a file in a folder that exists")


def run(args):
    texts = [(path, read_text(path)) for path in args.text]
    model = minilm.load()
    if model is None:
        raise InputError(f"package {minilm.PACKAGE} is not installed: expected the packages of tools/requirements.txt")
    validate(args, model)
    needed = (args.chunks + 1) * (model.positions - 2)
    ids, source = tokenize(model, texts, needed)
    if len(ids) < needed:
        what = f"{args.chunks} chunks and one for the queries need {needed}"
        raise InputError(f"--text: the text has {len(ids)} tokens; {what}")
    chunks = split_chunks(model, ids)
    tensors = capture(model, chunks, args)
    print("checks:")
    check_capture(model, chunks, tensors, args)
    check_embeddings(model)
    if args.check:
        check_package(model)
    print_flatness(tensors, args)
    if args.output:
        name = f"{model.name}, heads {args.heads}"
        metadata = {"format": "vattention-trace/1", "model": name, "source": source}
        data = serialize(tensors, metadata, args.dtype)
        write_trace(args.output, data, tensors)
        print(f"{args.output}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")


def main():
    try:
        run(parse_arguments())
    except InputError as error:
        print(f"capture_minilm: {error}", file=sys.stderr)
        return 2
    except CheckFailed as error:
        print(f"capture_minilm: check failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
