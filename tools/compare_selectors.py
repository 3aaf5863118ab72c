"""Compare selectors at equal density, with and without a sample: the tables of docs/methods.md.

    python3 tools/compare_selectors.py data/smollm2.safetensors --promise
    python3 tools/compare_selectors.py data/smollm2.safetensors long.safetensors --queries 8

Each selector picks 10 % of the context, in addition to a sink and a window of 128 tokens; or, for
the same number of tokens read, it picks 5 %, and a uniform sample reads another 5 %. Methods that
determine their own density are shown at that density.

With --promise, the tables show whether `ratio` keeps its promise after each index, with a uniform
sample and with one drawn by the scores of the index; an interrupted run continues from
target/promises. `vattention compare` and `verify` compute the numbers; the tables are Markdown.

Exit codes: 0 success, 2 invalid input.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "weights"
# Folder of the verdicts.
PROMISES = ROOT / "target/promises"
SINK_AND_WINDOW = """
[[selectors]]
type = "sink"
size = 128

[[selectors]]
type = "window"
size = 128
"""
SAMPLE = """
[estimator]
type = "ratio"
delta = 0.1
size = 0.05
"""
PROMISE = """
[estimator]
type = "ratio"
epsilon = 0.1
delta = 0.1
"""
# Samplers of the residual in the tables of promises.
SAMPLERS = {
    "uniform": "",
    "by its scores": '\n[sampler]\ntype = "priority"\nindex = "selectors"\n',
    "by codes of 2 bits": '\n[sampler]\ntype = "priority"\n',
}


def table(kind, **fields):
    """Formats a selector as a table in TOML."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"type": kind, **fields}.items()]
    return "\n".join(["", "[[selectors]]", *lines, ""])


def methods(share, tokens):
    """Returns selectors that pick a share of a context of `tokens` tokens, by name."""
    picked = int(share * tokens)
    return {
        "recent tokens": table("window", size=128 + picked),
        "oracle-top-k": table("oracle-top-k", size=share),
        "hash-attention, trained": table(
            "hash-attention", size=share, weights=f"{WEIGHTS}/smollm2-hash.safetensors"
        ),
        "hash-attention, random": table("hash-attention", size=share),
        "hata": table(
            "hash-attention",
            size=share,
            weights=f"{WEIGHTS}/smollm2-hata.safetensors",
            codes="group",
        ),
        "quest": table("quest", size=share),
        "quest, 2 bits": table("quest", size=share, bits=2),
        "double-sparsity": table(
            "double-sparsity",
            size=share,
            channels=16,
            calibration=f"{WEIGHTS}/smollm2-channels.json",
        ),
        "loki": table("loki", size=share, rank=16, basis=f"{WEIGHTS}/smollm2-basis.safetensors"),
        "sparq": table("sparq", size=share, channels=16),
        "pq-cache": table("pq-cache", size=share),
        "rotated-codes": table("rotated-codes", size=share),
        "ark-vale": table("ark-vale", size=share),
        "cluster-kv": table("cluster-kv", size=share),
        "socket": table("socket", size=share),
        "inf-llm": table("inf-llm", size=share),
        "squeezed-attention": table("squeezed-attention", size=share),
        "retrieval-attention": table("retrieval-attention", size=share),
        "snapkv": table("snapkv", size=128 + picked),
        **{
            f"prompt-eviction, {score}": table("prompt-eviction", size=picked, score=score)
            for score in ("key-norm", "key-difference", "lag", "expected-attention")
        },
        "tova": table("tova", size=128 + picked),
        "h2o": table("h2o", heavy=picked, recent=128),
        "scissorhands": table("scissorhands", size=128 + picked, recent=128),
    }


# Selectors that do not rank all tokens at a step.
UNRANKED = [
    "recent tokens",
    "retrieval-attention",
    "inf-llm",
    "snapkv",
    "prompt-eviction",
    "tova",
    "h2o",
    "scissorhands",
    "reuse",
    "duo-attention",
    "magic-pig",
]

# Selectors that determine their own density.
OWN_SIZE = {
    "oracle-top-p, 0.9": table("oracle-top-p", mass=0.9),
    "tactic, 0.9": table("tactic", mass=0.9),
    "twilight, 0.9 of quest's 20 %": table("twilight", mass=0.9)
    + 'of = { type = "quest", size = 0.2 }\n',
    "duo-attention, half of all heads": table(
        "duo-attention", gates=f"{WEIGHTS}/smollm2-gates.tsv"
    ),
    "magic-pig, 8 bits, 75 tables": table("magic-pig", bits=8, tables=75),
    "magic-pig, 10 bits, 150 tables": table("magic-pig", bits=10, tables=150),
}
WEIGHED = {
    "lsh, 8 bits, 75 tables": '\n[sampler]\ntype = "lsh"\nbits = 8\ntables = 75\n',
    "lsh, 10 bits, 150 tables": '\n[sampler]\ntype = "lsh"\nbits = 10\ntables = 150\n',
}


class InputError(Exception):
    """Error in the command line or a file; the exit code is 2."""


def count_tokens(trace):
    """Reads the number of tokens of a trace's first layer from the header of the file."""
    try:
        with trace.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, trace.stat().st_size)))
    except (OSError, ValueError) as error:
        raise InputError(f"{trace}: {error}; expected a trace")
    keys = [tensor["shape"] for name, tensor in header.items() if name.endswith(".keys")]
    if not keys:
        raise InputError(f"{trace}: no `layers.N.keys`; expected a trace")
    return keys[0][1]


def pipelines(tokens):
    """Returns the texts of pipelines by name and variant."""
    texts = {("dense", "alone"): ""}
    for name, text in methods(0.1, tokens).items():
        texts[name, "alone"] = SINK_AND_WINDOW + text
    for name, text in methods(0.05, tokens).items():
        texts[name, "sampled"] = SINK_AND_WINDOW + text + SAMPLE
    for name, text in OWN_SIZE.items():
        texts[name, "alone"] = SINK_AND_WINDOW + text
        texts[name, "sampled"] = SINK_AND_WINDOW + text + SAMPLE
    for name, text in WEIGHED.items():
        texts[name, "weighed"] = 'share = "head"\n' + SINK_AND_WINDOW + text
    return texts


def vattention(command, trace, texts, folder, options, allowed):
    """Runs a command of `vattention` on pipelines, and returns its JSON.

    `texts` are titles and texts of the pipelines, which are written to files in `folder`; `allowed`
    are exit codes that are no errors.
    """
    files = [folder / f"{i}.toml" for i in range(len(texts))]
    for file, (title, text) in zip(files, texts):
        file.write_text(f"name = {json.dumps(title)}\n{text}")
    report = folder / "report.json"
    run = ["cargo", "run", "--release", "--quiet", "--", command, *files]
    run += ["--trace", trace.resolve(), "--json", report, *options]
    if subprocess.run(run, cwd=ROOT, stdout=subprocess.DEVNULL).returncode not in allowed:
        raise InputError(f"vattention {command} failed, see above")
    return json.loads(report.read_text())


def compare(trace, options, texts):
    """Returns the results of `vattention compare` by pipeline."""
    titled = [(f"{name}, {variant}", text) for (name, variant), text in texts.items()]
    with tempfile.TemporaryDirectory() as folder:
        report = vattention("compare", trace, titled, Path(folder), options, [0])
    return dict(zip(texts, report["pipelines"]))


def verify(trace, name, text, sampler):
    """Returns the verdict of `vattention verify` on the promise of `ratio` after a selector."""
    text = f'share = "head"\n{SINK_AND_WINDOW}{text}{SAMPLERS[sampler]}{PROMISE}'
    title = f"{name}, {sampler}"
    folder = PROMISES / re.sub(r"[^a-z0-9]+", "-", f"{trace.stem}-{title}".lower())
    folder.mkdir(parents=True, exist_ok=True)
    results = ["--results", folder / "results.jsonl"]
    # Exit code 1 is the verdict "contradicted", 3 is "undecided".
    return vattention("verify", trace, [(title, text)], folder, results, [0, 1, 3])


def percent(share):
    return f"{100 * share:.1f} %"


def errors(result):
    return [f"{result['output_error'][key]:.3f}" for key in ("mean", "p95")]


def row(name, results, fastest):
    alone, sampled = results[name, "alone"], results.get((name, "sampled"))
    cells = [name, percent(alone["density"])]
    cells += [percent(alone["recall"]), *errors(alone)]
    cells += [percent(sampled["density"]), *errors(sampled)] if sampled else ["-"] * 3
    cells += [f"{alone['index_bytes_per_token']:.1f}", f"{alone['seconds'] / fastest:.2f}"]
    return "| " + " | ".join(cells) + " |"


def print_tables(trace, options):
    tokens = count_tokens(trace)
    texts = pipelines(tokens)
    results = compare(trace, options, texts)
    dense = results["dense", "alone"]["seconds"]
    print(f"\n`{trace.name}`, {tokens} tokens\n")
    print("| selector | read | recall | error | p95 | sampled: read | error | p95 | index | time |")
    print("|---" + "|--:" * 9 + "|")
    for name in [name for name, variant in texts if variant == "alone"]:
        print(row(name, results, dense))
    print("\n| weighted by its own probabilities | read | error | p95 |\n|---|--:|--:|--:|")
    for name in WEIGHED:
        weighed = results[name, "weighed"]
        print("| " + " | ".join([name, percent(weighed["density"]), *errors(weighed)]) + " |")


def verdict_cells(verdict):
    """Formats a verdict as cells."""
    heads = verdict["heads"]
    read = sum(head["density"] for head in heads) / len(heads)
    worst = max(head["violated"] / head["checked"] for head in heads)
    row = verdict["worst_row"]
    return [
        percent(read),
        percent(worst),
        f"{row['violated']} of {row['checked']}",
        verdict["verdict"],
    ]


def print_promises(trace):
    """Prints the verdict on each sampler after each selector."""
    print(f"\n`{trace.name}`, `ratio` after 5 %, one token list per query head\n")
    columns = [f"{sampler}: read | worst head | worst row | verdict" for sampler in SAMPLERS]
    print(f"| selector | {' | '.join(columns)} |")
    print("|---" + "|--:|--:|--:|---" * len(SAMPLERS) + "|")
    for name, text in (methods(0.05, count_tokens(trace)) | OWN_SIZE).items():
        ranked = name.split(", ")[0] not in UNRANKED
        cells = [name]
        for sampler in SAMPLERS:
            if ranked or sampler != "by its scores":
                cells += verdict_cells(verify(trace, name, text, sampler))
            else:
                cells += ["-"] * 4
        print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACE", help="traces of the model of weights/"
    )
    parser.add_argument("--queries", help="number of last queries of each layer")
    parser.add_argument("--backend", default="cpu", help="cpu or reference")
    parser.add_argument(
        "--promise",
        action="store_true",
        help="instead, verify the promise of `ratio` after each index",
    )
    args = parser.parse_args()
    options = ["--backend", args.backend] + (["--queries", args.queries] if args.queries else [])
    try:
        for trace in args.traces:
            if args.promise:
                print_promises(trace)
            else:
                print_tables(trace, options)
    except InputError as error:
        print(f"compare_selectors: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
