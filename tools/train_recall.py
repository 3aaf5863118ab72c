#!/usr/bin/env python3
"""Train a small Llama decoder that recalls: RULER's needles and variable tracking, one token a word.

Why: sparse attention is judged by what a model still finds. This model is small enough to ship, its attention must find single
tokens far back, and what it answers is right or wrong. The tasks are those of recall_tasks.py, the words those of
models/recall/vocabulary.json.

    python3 -m venv .venv-recall
    .venv-recall/bin/pip install torch==2.15.0 numpy==2.4.6 safetensors==0.8.0 tokenizers==0.23.3 transformers==5.23.0
    .venv-recall/bin/python tools/train_recall.py --minutes 60 -o models/recall
    .venv-recall/bin/python tools/train_recall.py --resume --minutes 90 -o models/recall
    .venv-recall/bin/python tools/check_recall.py models/recall

Training goes by stages: first short texts full of questions, then the tasks, then longer and longer ones; a stage ends when its
answers are right. Tasks that err come more often. Positions jump at random between sentences, so that far distances are seen in
short texts. The loss is only on what is asked. The weights start as recall_model.py says, from there recall took about a
million tokens; from random ones it had not come after two. The learning rate falls to nought over the last part of --minutes.

Two cores gave 9000 to 13000 tokens a second in texts of 128 when little else ran, and 2000 to 6000 at all lengths beside
builds.

An interrupt (Ctrl-C, or a TERM signal) writes the checkpoint; --resume goes on from it. The written folder is what
`transformers` loads: config.json, model.safetensors, tokenizer.json, generation_config.json; and the words as vocabulary.json,
and the log of training, a JSON line every few steps. Exit codes: 0 fine, 2 the input is wrong.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # Waiting threads must not spin where others need the cores.

try:
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
except ImportError as missing:
    print(
        f"train_recall: {missing}: expected the packages that its first lines install",
        file=sys.stderr,
    )
    sys.exit(2)

from recall_model import Recall, Shape, start
from recall_tasks import DRILLS, TASKS, VOCABULARY, Vocabulary, training_text

LONGEST = 16384
WARM_UP = 100
END_WEIGHT = 0.1  # Of a full stop that ends an answer, relative to a word of the answer.
MEMORY = 0.95  # What a running accuracy keeps in a step that has the task.


class InputError(Exception):
    """The command line or a file is wrong: exit 2."""


# Stages.


@dataclass
class Stage:
    """Texts of some lengths, the share of drills among them, and the mean accuracy that ends the stage."""

    lengths: list
    drills: float
    enough: float
    most_positions: int
    batch: int = 4096


STAGES = [
    Stage([128], 1.0, 0.75, 512),
    Stage([128, 256], 0.5, 0.8, 2048),
    Stage([128, 256, 512], 0.4, 0.85, 8192),
    Stage([128, 256, 512, 1024], 0.3, 0.87, LONGEST),
    Stage([128, 128, 256, 256, 512, 1024, 2048, 4096], 0.3, 2.0, LONGEST),
]


# Batches.


@dataclass
class Batch:
    words: torch.Tensor
    positions: torch.Tensor
    asked: torch.Tensor
    allowed: torch.Tensor
    known: torch.Tensor
    weights: torch.Tensor
    tasks: list

    def to(self, device):
        moved = {
            name: part.to(device) if torch.is_tensor(part) else part
            for name, part in vars(self).items()
        }
        return Batch(**moved)


def jumping_positions(rng, text, length, most):
    """0, 1, 2 and so on, in half of the texts with random gaps between sentences."""
    steps = [1] * length
    if rng.random() < 0.5 and most > length:
        spare = int((most - length) * rng.random())
        for _ in range(rng.randint(1, 8)):
            gap = rng.randint(0, spare)
            steps[rng.choice(text.starts)] += gap
            spare -= gap
    positions, place = [], -1
    for step in steps:
        place += step
        positions.append(place)
    return positions


def drawn(rng, tasks, accuracy):
    """One of the tasks: the more often, the more it errs."""
    return rng.choices(tasks, [0.1 + 1 - accuracy.get(task, 0) for task in tasks])[0]


def make_batch(vocabulary, rng, stage, length, accuracy):
    """Texts of one length, tasks mixed."""
    words, positions, asked, tasks = [], [], [], []
    for row in range(max(1, stage.batch // length)):
        task = drawn(rng, DRILLS if rng.random() < stage.drills else TASKS, accuracy)
        text = training_text(vocabulary, rng, task, length)
        while len(text.words) > length:
            text = training_text(vocabulary, rng, task, length)
        words.append((text.words + [0] * length)[:length])
        positions.append(jumping_positions(rng, text, length, stage.most_positions))
        asked += [(row * length + place, allowed) for place, allowed in text.asked]
        tasks += [task] * len(text.asked)
    return asked_batch(vocabulary, words, positions, asked, tasks)


def asked_batch(vocabulary, words, positions, asked, tasks):
    most = max(len(allowed) for _, allowed in asked)
    padded = [allowed + allowed[:1] * (most - len(allowed)) for _, allowed in asked]
    known = [[i < len(allowed) for i in range(most)] for _, allowed in asked]
    weights = [END_WEIGHT if allowed == [vocabulary.end] else 1.0 for _, allowed in asked]
    tensor = torch.tensor
    places = [place for place, _ in asked]
    return Batch(
        tensor(words),
        tensor(positions),
        tensor(places),
        tensor(padded),
        tensor(known),
        tensor(weights),
        tasks,
    )


# Steps.


def loss_and_hits(model, batch):
    """How far the answers are from giving each right word the same probability (Kullback-Leibler), in the mean; and where the
    likeliest word is right."""
    logits = model(batch.words, batch.positions, batch.asked).float()
    count = batch.known.sum(1)
    right = logits.gather(1, batch.allowed).masked_fill(~batch.known, 0).sum(1) / count
    loss = ((logits.logsumexp(1) - right - count.log()) * batch.weights).sum() / batch.weights.sum()
    hits = (logits.argmax(1, keepdim=True) == batch.allowed).any(1)
    return loss, hits


def accuracies(batch, hits):
    """{task: share of right words}, full stops left out."""
    counted = {}
    for task, hit, weight in zip(batch.tasks, hits.tolist(), batch.weights.tolist()):
        if weight == 1:
            counted.setdefault(task, []).append(hit)
    return {task: sum(hit) / len(hit) for task, hit in counted.items()}


def rate(args, step, minutes):
    """The learning rate: a warm-up, then constant, then down to nought over the last --fall of --minutes."""
    left = 1 - minutes / args.minutes if args.minutes else 0
    return args.rate * min(1, (step + 1) / WARM_UP, max(0, left) / args.fall)


class Run:
    """Everything that a checkpoint keeps."""

    def __init__(self, args, vocabulary):
        self.args, self.vocabulary = args, vocabulary
        torch.manual_seed(args.seed)
        self.rng = random.Random(args.seed)
        shape = Shape(
            len(vocabulary.words),
            args.width,
            args.layers,
            args.heads,
            args.kv_heads,
            hidden=args.hidden,
        )
        self.model = Recall(shape)
        start(self.model, args.plain_start)
        self.model.to(args.device)
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": 0.01},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98), fused=True)
        self.state = {
            "step": 0,
            "tokens": 0,
            "minutes": 0.0,
            "stage": args.stage,
            "stage_step": 0,
            "accuracy": {},
            "log": [],
        }

    def save(self):
        path = Path(self.args.checkpoint)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".partial")
        kept = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "state": self.state,
        }
        kept |= {"shape": self.model.shape.as_dict(), "rng": self.rng.getstate()}
        torch.save(kept, beside)
        os.replace(beside, path)

    def load(self):
        path = Path(self.args.checkpoint)
        try:
            kept = torch.load(path, map_location=self.args.device, weights_only=True)
        except FileNotFoundError:
            raise InputError(f"--resume: there is no {path}; expected a checkpoint (--checkpoint)")
        if kept["shape"] != self.model.shape.as_dict():
            raise InputError(
                f"{path}: is of the shape {kept['shape']}; expected {self.model.shape.as_dict()}"
            )
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.state = kept["state"]
        version, numbers, gauss = kept["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))

    def step(self):
        """One step; returns (loss, length, accuracies)."""
        state, stage = self.state, STAGES[self.state["stage"]]
        length = self.rng.choice(stage.lengths)
        batch = make_batch(self.vocabulary, self.rng, stage, length, state["accuracy"]).to(
            self.args.device
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.args, state["step"], state["minutes"])
        loss, hits = loss_and_hits(self.model, batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        found = accuracies(batch, hits)
        for task, accuracy in found.items():
            before = state["accuracy"].get(task, accuracy)
            state["accuracy"][task] = MEMORY * before + (1 - MEMORY) * accuracy
        state["step"] += 1
        state["stage_step"] += 1
        state["tokens"] += batch.words.numel()
        self.advance(stage)
        return float(loss.detach()), length

    def advance(self, stage):
        state = self.state
        tasks = [task for task in state["accuracy"] if task in TASKS or stage.drills == 1]
        mean = sum(state["accuracy"][task] for task in tasks) / max(1, len(tasks))
        if mean >= stage.enough and state["stage_step"] >= 100:
            state.update(stage=state["stage"] + 1, stage_step=0)

    def note(self, loss, length, speed):
        """A line of the log."""
        state = self.state
        line = {name: state[name] for name in ["step", "tokens", "stage"]}
        line |= {"minutes": round(state["minutes"], 2), "length": length, "loss": round(loss, 4)}
        line |= {"accuracy": {task: round(x, 4) for task, x in sorted(state["accuracy"].items())}}
        line |= {"tokens_per_second": round(speed)}
        state["log"].append(line)
        print(json.dumps(line), flush=True)


def train(run):
    """Steps until the minutes are over or an interrupt comes. True if they are over."""
    args, state, stopped = run.args, run.state, []
    for name in [signal.SIGINT, signal.SIGTERM]:
        signal.signal(name, lambda *_: stopped.append(True))
    before, saved, losses, tokens, noted = (
        time.monotonic(),
        time.monotonic(),
        [],
        state["tokens"],
        time.monotonic(),
    )
    while not stopped and state["minutes"] < args.minutes:
        loss, length = run.step()
        losses.append(loss)
        now = time.monotonic()
        state["minutes"] += (now - before) / 60
        before = now
        if state["step"] % args.note_every == 0:
            run.note(sum(losses) / len(losses), length, (state["tokens"] - tokens) / (now - noted))
            losses, tokens, noted = [], state["tokens"], now
        if now - saved > 60 * args.save_every:
            run.save()
            saved = now
    run.save()
    return not stopped


# The folder that `transformers` loads.


def config(run):
    shape, number = run.model.shape, run.vocabulary.number
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": LONGEST,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "bos_token_id": number["<bos>"],
        "eos_token_id": number["."],
        "use_cache": True,
        "torch_dtype": "bfloat16",
    }


def tokenizer(vocabulary):
    result = Tokenizer(models.WordLevel(vocabulary.number, unk_token="<unk>"))
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    begin = ("<bos>", vocabulary.number["<bos>"])
    result.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[begin]
    )
    result.add_special_tokens(vocabulary.content["special"])
    return result


def write(run, folder):
    folder.mkdir(parents=True, exist_ok=True)
    as_json = lambda name, content: (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    as_json("config.json", config(run))
    ends = {
        "bos_token_id": run.vocabulary.number["<bos>"],
        "eos_token_id": run.vocabulary.number["."],
    }
    as_json("generation_config.json", {**ends, "do_sample": False, "max_new_tokens": 8})
    as_json(
        "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "unk_token": "<unk>"},
    )
    tokenizer(run.vocabulary).save(str(folder / "tokenizer.json"))
    if not (folder / VOCABULARY.name).exists() or not VOCABULARY.samefile(folder / VOCABULARY.name):
        shutil.copyfile(VOCABULARY, folder / VOCABULARY.name)
    tensors = {
        name: tensor.detach().cpu().to(torch.bfloat16).contiguous()
        for name, tensor in run.model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "training.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in run.state["log"])
    )


# The command line.


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise InputError(message)


def parse_arguments():
    parser = Parser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("-o", dest="output", type=Path, metavar="FOLDER", help="the folder to write")
    add("--minutes", type=float, default=60, help="of training in all, resumed ones counted")
    add(
        "--checkpoint",
        type=Path,
        default=Path(".recall/checkpoint.pt"),
        help="the file that --resume goes on from",
    )
    add("--resume", action="store_true", help="go on from the checkpoint")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    add("--threads", type=int, default=2, help="on the CPU")
    add("--seed", type=int, default=0, help="of weights and texts")
    add("--rate", type=float, default=3e-3, help="the highest learning rate")
    add(
        "--fall",
        type=float,
        default=0.3,
        help="the last part of the minutes, over which the rate falls",
    )
    add("--stage", type=int, default=0, choices=range(len(STAGES)), help="the first stage")
    add("--width", type=int, default=128, help="of the hidden state")
    add("--layers", type=int, default=3, help="of the decoder")
    add("--heads", type=int, default=4, help="of queries, 64 wide")
    add("--kv-heads", type=int, default=2, help="of keys and values")
    add("--hidden", type=int, default=256, help="width of the feed-forward part")
    add("--plain-start", action="store_true", help="start from random weights only")
    add("--note-every", type=int, default=50, help="steps between lines of the log")
    add("--save-every", type=float, default=2, help="minutes between checkpoints")
    args = parser.parse_args()
    check(args)
    return args


def check(args):
    for name in ["threads", "width", "layers", "heads", "kv_heads", "hidden", "note_every"]:
        if getattr(args, name) < 1:
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(args, name)}; expected 1 or more"
            )
    if args.width % 2 or args.width < 32:
        raise InputError(f"--width {args.width}; expected an even number, 32 or more")
    if args.heads % args.kv_heads:
        raise InputError(f"--heads {args.heads}; expected a multiple of --kv-heads {args.kv_heads}")
    if not 0 <= args.minutes < 1e6:
        raise InputError(f"--minutes {args.minutes}; expected 0 or more")
    if not 0 < args.rate < 1:
        raise InputError(f"--rate {args.rate}; expected a number between 0 and 1")
    if not 0 < args.fall <= 1:
        raise InputError(f"--fall {args.fall}; expected a number above 0, at most 1")
    try:
        torch.empty(1, device=args.device)
    except (RuntimeError, AssertionError):
        raise InputError(f"--device {args.device} cannot be used; expected cpu or cuda")
    if args.output and args.output.exists() and not args.output.is_dir():
        raise InputError(f"-o {args.output}: is a file; expected a folder")


def main():
    try:
        args = parse_arguments()
        torch.set_num_threads(args.threads)
        run = Run(args, Vocabulary())
        if args.resume:
            run.load()
        over = train(run)
        if args.output:
            write(run, args.output)
        print(
            f"train_recall: {run.state['step']} steps, {run.state['tokens']} tokens"
            + ("" if over else ", interrupted")
        )
    except InputError as error:
        print(f"train_recall: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
