#!/usr/bin/env python3
"""Train a small Llama decoder for recall: RULER's needles and variable tracking.

The model is small enough to ship, its attention must find single tokens far back, and its answers
are right or wrong, so it shows whether sparse attention still finds what it must. Its tasks are
those of recall_tasks.py. Each word of models/recall/vocabulary.json is one token.

    python3 -m venv .venv-recall
    .venv-recall/bin/pip install torch==2.15.0 numpy==2.4.6 safetensors==0.8.0 \\
        tokenizers==0.23.3 transformers==5.23.0
    .venv-recall/bin/python tools/train_recall.py --minutes 60 -o models/recall
    .venv-recall/bin/python tools/train_recall.py --resume --minutes 90 -o models/recall

Training has stages: short texts full of questions, then the tasks, then longer texts. A stage ends
when its answers are accurate enough. Tasks with more wrong answers are drawn more often. Positions
have random gaps between sentences, so that short texts have long distances. Only answers count in
the loss. recall_model.py describes the initial weights. The learning rate falls to zero over the
last part of --minutes.

Speed on two cores: 9000 to 13000 tokens per second in texts of 128 tokens.

An interrupt (Ctrl-C, or SIGTERM) writes the checkpoint, from which --resume continues. The output
folder can be loaded by `transformers`: config.json, model.safetensors, tokenizer.json,
generation_config.json. It also has vocabulary.json and training.jsonl, the log. Exit codes:
0 success, 2 invalid input.
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

# Waiting threads must not spin, because other processes may need the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
except ImportError as missing:
    print(
        f"train_recall: {missing}; install the packages listed in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

from recall_model import Recall, Shape, initialize
from recall_tasks import DRILLS, TASKS, VOCABULARY, Vocabulary, training_text

LONGEST = 16384
WARM_UP = 100
END_WEIGHT = 0.1  # Weight of the full stop after an answer, relative to a word of the answer.
MEMORY = 0.95  # Decay of the running accuracy of a task, in each step that has the task.


class InputError(Exception):
    """Error in the command line or a file; the exit code is 2."""


# Stages.


@dataclass
class Stage:
    """Stage of the training.

    A batch has `batch` tokens in texts of one of the `lengths`; `drills` is the share of drills
    among the texts. The stage ends at a mean accuracy of `enough`.
    """

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
    real: torch.Tensor
    weights: torch.Tensor
    tasks: list

    def to(self, device):
        moved = {
            name: part.to(device) if torch.is_tensor(part) else part
            for name, part in vars(self).items()
        }
        return Batch(**moved)


def jumping_positions(rng, text, length, most):
    """Returns increasing positions from 0, in half of the texts with gaps between sentences."""
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


def draw_task(rng, tasks, accuracy):
    """Draws a task, those of lower accuracy more often."""
    return rng.choices(tasks, [0.1 + 1 - accuracy.get(task, 0) for task in tasks])[0]


def make_batch(vocabulary, rng, stage, length, accuracy):
    """Makes a batch of texts of one length and of different tasks."""
    words, positions, asked, tasks = [], [], [], []
    for row in range(max(1, stage.batch // length)):
        task = draw_task(rng, DRILLS if rng.random() < stage.drills else TASKS, accuracy)
        text = training_text(vocabulary, rng, task, length)
        while len(text.words) > length:
            text = training_text(vocabulary, rng, task, length)
        words.append((text.words + [0] * length)[:length])
        positions.append(jumping_positions(rng, text, length, stage.most_positions))
        asked += [(row * length + place, allowed) for place, allowed in text.asked]
        tasks += [task] * len(text.asked)
    return pad_answers(vocabulary, words, positions, asked, tasks)


def pad_answers(vocabulary, words, positions, asked, tasks):
    """Makes a batch whose lists of allowed words have one length; `real` marks those not padded."""
    most = max(len(allowed) for _, allowed in asked)
    padded = [allowed + allowed[:1] * (most - len(allowed)) for _, allowed in asked]
    real = [[i < len(allowed) for i in range(most)] for _, allowed in asked]
    weights = [END_WEIGHT if allowed == [vocabulary.end] else 1.0 for _, allowed in asked]
    tensor = torch.tensor
    places = [place for place, _ in asked]
    return Batch(
        tensor(words),
        tensor(positions),
        tensor(places),
        tensor(padded),
        tensor(real),
        tensor(weights),
        tasks,
    )


# Steps.


def loss_and_hits(model, batch):
    """Returns the mean loss, and flags of the answers whose likeliest word is right.

    The loss is the Kullback-Leibler divergence from the uniform distribution over the right words.
    """
    logits = model(batch.words, batch.positions, batch.asked).float()
    count = batch.real.sum(1)
    right = logits.gather(1, batch.allowed).masked_fill(~batch.real, 0).sum(1) / count
    loss = ((logits.logsumexp(1) - right - count.log()) * batch.weights).sum() / batch.weights.sum()
    hits = (logits.argmax(1, keepdim=True) == batch.allowed).any(1)
    return loss, hits


def accuracies(batch, hits):
    """Returns the share of right words by task; full stops do not count."""
    counted = {}
    for task, hit, weight in zip(batch.tasks, hits.tolist(), batch.weights.tolist()):
        if weight == 1:
            counted.setdefault(task, []).append(hit)
    return {task: sum(hit) / len(hit) for task, hit in counted.items()}


def rate(args, step, minutes):
    """Returns the learning rate: a warm-up, a constant, then a fall to 0 in the last minutes."""
    left = 1 - minutes / args.minutes if args.minutes else 0
    return args.rate * min(1, (step + 1) / WARM_UP, max(0, left) / args.fall)


class Run:
    """State of a training run, which a checkpoint stores."""

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
        initialize(self.model, args.plain_start)
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
            raise InputError(
                f"--resume: {path} does not exist; expected a checkpoint (--checkpoint)"
            )
        if kept["shape"] != self.model.shape.as_dict():
            raise InputError(
                f"{path}: has the shape {kept['shape']}; expected {self.model.shape.as_dict()}"
            )
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.state = kept["state"]
        version, numbers, gauss = kept["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))

    def step(self):
        """Makes a step, and returns its loss and the length of its texts."""
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
        """Adds a line to the log and prints it."""
        state = self.state
        line = {name: state[name] for name in ["step", "tokens", "stage"]}
        line |= {"minutes": round(state["minutes"], 2), "length": length, "loss": round(loss, 4)}
        line |= {"accuracy": {task: round(x, 4) for task, x in sorted(state["accuracy"].items())}}
        line |= {"tokens_per_second": round(speed)}
        state["log"].append(line)
        print(json.dumps(line), flush=True)


def train(run):
    """Makes steps until the minutes are over; returns False if an interrupt came before."""
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


# Files of the output folder.


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
    add("-o", dest="output", type=Path, metavar="FOLDER", help="write the model to this folder")
    add("--minutes", type=float, default=60, help="minutes of training, earlier runs included")
    add(
        "--checkpoint",
        type=Path,
        default=Path(".recall/checkpoint.pt"),
        help="file of the checkpoint",
    )
    add("--resume", action="store_true", help="continue from the checkpoint")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    add("--threads", type=int, default=2, help="number of threads on the CPU")
    add("--seed", type=int, default=0, help="seed of weights and texts")
    add("--rate", type=float, default=3e-3, help="highest learning rate")
    add(
        "--fall",
        type=float,
        default=0.3,
        help="last share of the minutes, in which the learning rate falls",
    )
    add("--stage", type=int, default=0, choices=range(len(STAGES)), help="first stage")
    add("--width", type=int, default=128, help="size of the hidden state")
    add("--layers", type=int, default=3, help="number of layers")
    add("--heads", type=int, default=4, help="number of query heads, of 64 elements each")
    add("--kv-heads", type=int, default=2, help="number of KV heads")
    add("--hidden", type=int, default=256, help="size of the feed-forward layers")
    add("--plain-start", action="store_true", help="start from random weights")
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
