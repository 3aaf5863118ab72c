"""Example: compares pipelines on the attention and on the generated text of a model.

    python examples/compare_strategies.py                         # a small shipped model
    python examples/compare_strategies.py MODEL-FOLDER TEXT-FILE  # your model, on the CPU

The first part captures a trace of one text, and compares pipelines with exact attention on it. In
the second part the model continues the text with some of the pipelines, and each step is compared
with dense attention.
"""

import sys
import tempfile
from pathlib import Path

import pandas
from transformers import AutoModelForCausalLM, AutoTokenizer

import vattention
from vattention.transformers import VAttentionCache, capture

ROOT = Path(__file__).resolve().parents[2]
PIPELINES = [
    "dense",
    "priority",
    "vattention-oracle",
    "oracle-top-k",
    "quest",
    "pq-cache",
    "snapkv",
    "streaming-llm",
]

NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    * 60
)
NEEDLE = "One of the special magic numbers for amber_anchor is: 2998500. "
QUESTION = "The special magic number for amber_anchor mentioned in the provided text is"


def compare_pipelines(layers):
    """Returns a table of the density and the output error of each pipeline."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.safetensors"
        vattention.write_trace(trace, layers)
        found = vattention.compare(PIPELINES, trace)
    table = pandas.json_normalize(found["pipelines"])
    columns = ["pipeline", "density", "output_error.mean", "output_error.max"]
    return (
        table[columns]
        .set_axis(["pipeline", "read", "error", "largest"], axis="columns")
        .sort_values("read")
    )


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "models" / "recall")
    text = Path(sys.argv[2]).read_text() if len(sys.argv) > 2 else NOISE + NEEDLE + NOISE + QUESTION
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", attn_implementation="vattention"
    )
    inputs = tokenizer(text, return_tensors="pt")

    table = compare_pipelines(capture(model, inputs["input_ids"]))
    print(table.to_string(index=False, float_format="{:.4f}".format))

    for name in ["dense", "priority", "streaming-llm"]:
        cache = VAttentionCache(model, name, check=True)
        tokens = model.generate(**inputs, cache=cache, max_new_tokens=8, do_sample=False)
        summary = cache.summary()
        answer = tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :])
        print(
            f"\n{name}: {answer!r}, {summary['density']:.1%} read, "
            f"mean error {summary['error']:.4f}"
        )
        if summary["violations"] is not None:
            print(f"the promise was violated in {summary['violations']} of {summary['rows']} rows")


if __name__ == "__main__":
    main()
