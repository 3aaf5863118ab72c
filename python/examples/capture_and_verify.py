"""Example: captures a trace of a model, and tests on it whether a pipeline keeps its promise.

    python examples/capture_and_verify.py                                  # a small shipped model
    python examples/capture_and_verify.py MODEL-FOLDER TEXT-FILE PIPELINE  # your model, on the CPU

The test draws hundreds of samples for every head.
"""

import sys
import tempfile
from pathlib import Path

import pandas
from transformers import AutoModelForCausalLM, AutoTokenizer

import vattention
from vattention.transformers import capture

ROOT = Path(__file__).resolve().parents[2]


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "models" / "recall")
    text = Path(
        sys.argv[2] if len(sys.argv) > 2 else ROOT / "models" / "recall" / "haystack.txt"
    ).read_text()
    pipeline = sys.argv[3] if len(sys.argv) > 3 else ROOT / "configs" / "priority.toml"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")

    layers = capture(model, tokenizer(text, return_tensors="pt")["input_ids"], queries=8)
    with tempfile.TemporaryDirectory() as temporary:
        trace = Path(temporary) / "trace.safetensors"
        vattention.write_trace(trace, layers)
        verdict = vattention.verify(pipeline, trace, trials=400, progress=sys.stderr.isatty())

    goal, violations = verdict["goal"], verdict["violations"]
    print(
        f"{verdict['pipeline']}: Pr({goal['target']} error > {goal['epsilon']}) <= {goal['delta']}"
    )
    print(
        f"{violations['violated']} of {violations['checked']} samples exceed epsilon; "
        f"no head's rate is above {verdict['upper']:.3f}"
    )
    heads = pandas.DataFrame(verdict["heads"])[
        ["layer", "query_head", "density", "violated", "checked", "p_value"]
    ]
    print(heads.to_string(index=False))
    coverage = verdict["row_coverage"]
    match verdict["verdict"]:
        case "held":
            print("nothing contradicts the promise")
        case "undecided":
            print(
                f"undecided (suspected by {verdict['suspected_by']}): "
                f"{coverage['unjudged']} rows have too few samples; "
                f"trials={coverage['least_trials']} suffices for all rows"
            )
        case "contradicted":
            print(f"the promise is contradicted: {verdict['fault']}")


if __name__ == "__main__":
    main()
