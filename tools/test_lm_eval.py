#!/usr/bin/env python3
"""Evaluations by lm-eval's `local-completions`, beside the results of this project's commands.

    cargo build --release && tools/test_clients.sh

The server runs the model of `models/recall`, dense and with `priority`. VATTENTION is the path of
the command, if it is elsewhere.
"""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import requests

from serving.needles import Needle
from serving.server import PRIORITY, RECALL, find_binary, start_with_key

KEY = "the-key-of-the-test"
DENSE, SPARSE = "recall@dense", "recall@priority"
# Number of tokens that dense attention reads of scored prompts; the pipeline reads the others.
DENSE_PREFIX = 200
# Long enough that `priority` samples: it reads shorter prompts whole.
CASES = [Needle(seed, sentences=400) for seed in range(4)]
# lm-eval sends tokens without the one that the tokenizer puts first.
BEGIN = "<bos> "
# Tasks of lm-eval over a local file.
TASKS = {
    "needle_choice": """
task: needle_choice
dataset_path: json
dataset_kwargs: {data_files: CASES}
test_split: train
output_type: multiple_choice
doc_to_text: prompt
doc_to_choice: choices
doc_to_target: target
metric_list: [{metric: acc}]
""",
    "needle_answer": """
task: needle_answer
dataset_path: json
dataset_kwargs: {data_files: CASES}
test_split: train
output_type: generate_until
doc_to_text: prompt
doc_to_target: answer
generation_kwargs: {until: ["."], max_gen_toks: 8, temperature: 0}
metric_list: [{metric: exact_match}]
""",
}


def setUpModule() -> None:
    global server
    server = start_with_key(KEY, "--dense-prefix", str(DENSE_PREFIX))
    unittest.addModuleCleanup(server.stop)


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        os.environ |= {"HF_HOME": cls.folder.name, "OPENAI_API_KEY": KEY}
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        choices = [f" {case.number}" for case in CASES]
        data, lines = Path(cls.folder.name) / "cases.jsonl", []
        for target, case in enumerate(CASES):
            row = {"prompt": BEGIN + case.prompt, "choices": choices, "target": target}
            lines.append(json.dumps({**row, "answer": case.number}) + "\n")
        data.write_text("".join(lines))
        for name, text in TASKS.items():
            path = Path(cls.folder.name) / f"{name}.yaml"
            path.write_text(text.replace("CASES", str(data)))

    def evaluate(self, task: str, model: str) -> dict:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        settings = {"model": model, "base_url": f"{server.address}/v1/completions"}
        settings |= {"num_concurrent": 4, "max_length": 4096, "auth_token": KEY}
        return simple_evaluate(
            model="local-completions",
            model_args={**settings, "tokenizer_backend": "remote"},
            tasks=[task],
            task_manager=TaskManager(include_path=self.folder.name, include_defaults=False),
            bootstrap_iters=0,
        )

    def test_log_likelihoods_equal_those_of_the_command(self) -> None:
        for model, pipeline in [(DENSE, "dense"), (SPARSE, PRIORITY)]:
            found = self.evaluate("needle_choice", model)
            self.assertEqual(found["results"]["needle_choice"]["acc,none"], 1)
            for sample in found["samples"]["needle_choice"]:
                for choice, response in zip(sample["doc"]["choices"], sample["filtered_resps"]):
                    expected = score_last_token(sample["doc"]["prompt"] + choice, pipeline)
                    self.assertEqual(float(response[0]), expected)

    def test_generated_answers_equal_those_of_the_command(self) -> None:
        for model, pipeline in [(DENSE, "dense"), (SPARSE, PRIORITY)]:
            found = self.evaluate("needle_answer", model)
            for sample in found["samples"]["needle_answer"]:
                answer = sample["filtered_resps"][0]
                self.assertEqual(answer, generate(sample["doc"]["prompt"], pipeline))
                self.assertIn(sample["doc"]["answer"], answer)


def run_command(name: str, text: str, option: str, *options: str | Path) -> dict:
    """Returns the JSON report of a command about a text, which `option` names."""
    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder) / "text.txt", Path(folder) / "report.json"
        file.write_text(text)
        command = [find_binary(), name, "--model", RECALL, option, file, "--json", report, *options]
        subprocess.run([str(part) for part in command], check=True, capture_output=True)
        return json.loads(report.read_text())


def score_last_token(text: str, pipeline: str | Path) -> float:
    """Returns the log-likelihood of a text's last token by `vattention perplexity`."""
    tokens = count_tokens(text)
    options = ["--window", tokens, "--dense-prefix", DENSE_PREFIX, "--pipeline", pipeline]
    options += ["--fall-back", "by-count"]  # as the server does
    report = run_command("perplexity", text, "--text", *options)
    return report["scores"][0]["pipelines"][0]["logprobs"][-1]


def count_tokens(text: str) -> int:
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"prompt": text, "add_special_tokens": False}
    return requests.post(f"{server.address}/tokenize", json=body, headers=headers).json()["count"]


def generate(prompt: str, pipeline: str | Path) -> str:
    """Returns the answer of `vattention generate` up to the first full stop."""
    options = ["--pipeline", pipeline, "--tokens", "8", "--quiet"]
    return run_command("generate", prompt, "--context", *options)["answer"].partition(".")[0]


if __name__ == "__main__":
    unittest.main()
