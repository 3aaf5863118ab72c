#!/usr/bin/env python3
"""Measure the accuracy of a trained recall model with `transformers`.

Each task has new texts of each length, with one question at the end, which the model answers by
greedy decoding. `exact` is the share of texts with a completely right answer: all words (those of
needles in any order, variables in the order of the chain) and a full stop. `words` (`told` in the
JSON file) is RULER's measure: the mean share of the expected words that the answer contains.

    .venv-recall/bin/python tools/check_recall.py models/recall
    .venv-recall/bin/python tools/check_recall.py models/recall \\
        --lengths 512,4096 --tasks single,vt --texts 100
    .venv-recall/bin/python tools/check_recall.py models/recall --compare

`--compare` also compares the logits of one text with those of recall_model.py. Exit codes:
0 success, 1 the logits or tokens differ, 2 invalid input.
"""

import argparse
import json
import random
import sys
from pathlib import Path

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as missing:
    print(
        f"check_recall: {missing}; install the packages listed in the first lines of "
        "train_recall.py",
        file=sys.stderr,
    )
    sys.exit(2)

from recall_model import Recall, Shape
from recall_tasks import TASKS, Vocabulary, test_text

TOLERANCE = 1e-3


class InputError(Exception):
    """Error in the command line or a file; the exit code is 2."""


class CheckFailed(Exception):
    """Error: logits or tokens differ from those of the training code; the exit code is 1."""


def load(folder, device):
    try:
        model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(Path(folder) / "tokenizer.json")
        )
    except Exception as error:  # A damaged folder raises many kinds of exceptions.
        raise InputError(f"{folder}: {error}; expected a folder that train_recall.py wrote")
    return model.to(device).eval(), tokenizer


def make_question(vocabulary, tokenizer, rng, task, length):
    """Returns the tokens up to the answer, and the answer; raises if the tokenizer disagrees."""
    text = test_text(vocabulary, rng, task, length)
    first = text.asked[0][0] + 1
    prompt, answer = text.words[:first], text.words[first:]
    tokens = tokenizer(vocabulary.decode(prompt[1:]))["input_ids"]
    if tokens != prompt:
        raise CheckFailed(
            f"{task}, {length} tokens: the tokenizer gives other tokens than the vocabulary"
        )
    return prompt, answer


@torch.no_grad()
def generate(model, prompt, count):
    words = torch.tensor([prompt], device=model.device)
    settings = {
        "do_sample": False,
        "max_new_tokens": count,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    tokens = model.generate(words, attention_mask=torch.ones_like(words), **settings)
    return tokens[0, len(prompt) :].tolist()


def score(task, expected, answer):
    """Returns True for an exact answer, and the share of the expected words that it contains."""
    words = expected[:-1]
    in_order = answer == expected
    any_order = answer[-1] == expected[-1] and sorted(answer) == sorted(expected)
    share = sum(word in answer for word in words) / len(words)
    return (in_order if task == "vt" else any_order), share


def measure(model, tokenizer, vocabulary, task, length, texts, seed):
    rng = random.Random(f"{seed} {task} {length}")
    results = []
    for _ in range(texts):
        prompt, answer = make_question(vocabulary, tokenizer, rng, task, length)
        results.append(score(task, answer, generate(model, prompt, len(answer))))
    exact, shares = zip(*results)
    return sum(exact) / texts, sum(shares) / texts


@torch.no_grad()
def compare(model, folder, vocabulary):
    """Returns the largest difference between logits of `transformers` and of recall_model.py.

    The difference is relative to the largest logit of one text.
    """
    config = json.loads((Path(folder) / "config.json").read_text())
    names = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
    names |= {
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "hidden": "intermediate_size",
    }
    names |= {"vocabulary": "vocab_size", "rope_theta": "rope_theta", "epsilon": "rms_norm_eps"}
    ours = Recall(Shape(**{name: config[key] for name, key in names.items()}))
    ours.load_state_dict(
        {
            name: tensor.float()
            for name, tensor in load_file(Path(folder) / "model.safetensors").items()
        }
    )
    words = torch.tensor([test_text(vocabulary, random.Random(0), "multikey", 1024).words])
    positions = torch.arange(words.shape[1])[None]
    found = ours(words, positions, torch.arange(words.shape[1]))
    expected = model(words.to(model.device)).logits[0].cpu()
    return float((found - expected).abs().max() / expected.abs().max())


def table(rows, lengths):
    lines = ["| task | " + " | ".join(map(str, lengths)) + " |", "|---|" + "--:|" * len(lengths)]
    cell = lambda result: f"{result[0]:.3f} ({result[1]:.3f})"
    lines += [f"| {task} | " + " | ".join(map(cell, row)) + " |" for task, row in rows.items()]
    return "\n".join(lines)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(message)


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{text!r}; expected whole numbers, 1 or more")
    return int(text)


def parse_arguments():
    parser = Parser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder that train_recall.py wrote")
    parser.add_argument(
        "--lengths",
        default="512,1024,2048,4096,8192",
        help="lengths of the texts in tokens, separated by commas",
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, separated by commas")
    parser.add_argument("--texts", type=positive, default=50, help="texts per task and length")
    parser.add_argument("--seed", type=int, default=1, help="seed of the texts")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=positive, default=2, help="number of CPU threads")
    parser.add_argument(
        "--compare", action="store_true", help="also compare logits with the training code"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    args = parser.parse_args()
    args.lengths = [positive(length) for length in args.lengths.split(",")]
    if min(args.lengths) < 128:
        raise InputError(
            f"--lengths {min(args.lengths)}; expected 128 or more, because questions are long"
        )
    args.tasks = args.tasks.split(",")
    if unknown := set(args.tasks) - set(TASKS):
        raise InputError(
            f"--tasks {', '.join(sorted(unknown))}; expected some of {', '.join(TASKS)}"
        )
    try:
        torch.empty(1, device=args.device)
    except (RuntimeError, AssertionError):
        raise InputError(f"--device {args.device} cannot be used; expected cpu or cuda")
    if not args.folder.is_dir():
        raise InputError(f"{args.folder}: no such folder; expected one that train_recall.py wrote")
    return args


def run(args):
    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    vocabulary = Vocabulary()
    model, tokenizer = load(args.folder, args.device)
    if args.compare:
        difference = compare(model, args.folder, vocabulary)
        print(
            f"logits differ by {difference:.2g}, relative to the largest "
            f"(expected at most {TOLERANCE:g})"
        )
        if not difference <= TOLERANCE:
            raise CheckFailed(f"logits differ by {difference:.2g}")
    rows = {}
    for task in args.tasks:
        for length in args.lengths:
            result = measure(model, tokenizer, vocabulary, task, length, args.texts, args.seed)
            rows.setdefault(task, []).append(result)
            print(
                f"{task}, {length} tokens: exact {result[0]:.3f}, words {result[1]:.3f}",
                file=sys.stderr,
                flush=True,
            )
    print(f"exact (words), {args.texts} texts each:\n\n{table(rows, args.lengths)}")
    if args.json:
        both = lambda result: {"exact": result[0], "told": result[1]}
        numbers = {
            task: dict(zip(map(str, args.lengths), map(both, row))) for task, row in rows.items()
        }
        args.json.write_text(
            json.dumps({"texts": args.texts, "seed": args.seed, "tasks": numbers}, indent=2) + "\n"
        )


def main():
    try:
        run(parse_arguments())
    except InputError as error:
        print(f"check_recall: {error}", file=sys.stderr)
        return 2
    except CheckFailed as error:
        print(f"check_recall: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
