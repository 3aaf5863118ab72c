"""Make runtime/llm/tests/golden/smollm2.json: outputs of other programs with SmolLM2-135M-Instruct.

    python3 tools/get_smollm2.py && python3 tools/get_prose.py
    python3 tools/bench_prefill.py --install
    golden=runtime/llm/tests/golden/smollm2.json
    .venv-prefill/bin/python tools/make_smollm2_golden.py -o $golden
    .venv-prefill/bin/python tools/make_smollm2_golden.py --check -o $golden

The programs are llama.cpp and Hugging Face transformers, the file of the model is in Q4_1. For each
of three prompts, the output has the text, its token ids (on which both tokenizers must agree) and,
for each program, a greedy continuation of 50 tokens with the logits of the best and the second best
token at every step. If the two logits are close, rounding decides, and another program may continue
with the second best token.

transformers dequantises the weights and computes in float32. llama.cpp rounds activations to 8 bits
before products with quantised weights, so its logits differ by up to about 1; with the same weights
in float32 the difference is 1e-4. Here, its keys and values are float32, and its flash attention is
off. Both programs have the same tokens before each of the first `steps_alike` steps;
`logits_differ_at_most` is the largest difference of logits in these steps, over the vocabulary.

Exit codes: 0 success, 1 the file differs from the programs' outputs (--check), 2 a package or file
is missing.
"""

import argparse
import json
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import fetching
from fetching import Failed
from get_smollm2 import OUTPUT as MODEL
from get_smollm2 import SHA256

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import llama_cpp
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging
except ImportError as missing:
    print(
        f"make_smollm2_golden: {missing}; install the packages of tools/prefill/requirements.txt",
        file=sys.stderr,
    )
    sys.exit(2)

ROOT = Path(__file__).resolve().parents[1]
PROSE = ROOT / "texts" / "kjv-haystack.txt"
PASSAGE = ("A certain man had two sons: And the younger", "and was lost, and is found.")
GREEDY = 50
TOLERANCE = 0.05
"""Largest difference of logits for --check, which may run on another processor."""
F32 = llama_cpp.GGML_TYPE_F32


def chat(request: str) -> str:
    """Formats a request by the model's chat template, up to the answer."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    parts = [("system", system), ("user", request)]
    return (
        "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in parts)
        + "<|im_start|>assistant\n"
    )


def passage() -> str:
    """Returns about 600 tokens of prose: the parable of Luke 15."""
    try:
        text = PROSE.read_text()
    except OSError as error:
        raise Failed(f"{PROSE}: {error.strerror}; expected the text that tools/get_prose.py makes")
    first, last = PASSAGE
    start = text.index(first)
    return text[start : text.index(last, start) + len(last)]


def prompts() -> dict[str, str]:
    question = (
        "Tell in a few sentences of your own what the younger son did, "
        "and how his father received him."
    )
    return {
        "continuation": "The water cycle begins when the sun heats the surface of the sea, and",
        "question": chat("Why is the sky blue? Explain it in simple words."),
        "passage": chat(f"{passage()}\n\n{question}"),
    }


# Programs, which compute the logits after the prompt and after each further token.


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, path: Path) -> None:
        options = {
            "n_ctx": 2048,
            "n_batch": 512,
            "n_ubatch": 512,
            "n_threads": 2,
            "n_threads_batch": 2,
        }
        options |= {"type_k": F32, "type_v": F32, "flash_attn": False, "verbose": False}
        self.llm = llama_cpp.Llama(str(path), **options)

    def tokenize(self, text: str) -> list[int]:
        return self.llm.tokenize(text.encode(), add_bos=True, special=True)

    def text(self, tokens: list[int]) -> str:
        return self.llm.detokenize(tokens, special=True).decode()

    def begin(self, prompt: list[int]) -> np.ndarray:
        self.llm.reset()
        return self.extend(prompt)

    def extend(self, tokens: list[int]) -> np.ndarray:
        self.llm.eval(tokens)
        pointer = self.llm._ctx.get_logits_ith(-1)
        return np.ctypeslib.as_array(pointer, shape=(self.llm.n_vocab(),)).copy()


class Transformers:
    name = "transformers"

    def __init__(self, path: Path) -> None:
        logging.disable_progress_bar()
        self.tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        options = {"gguf_file": path.name, "dtype": torch.float32, "attn_implementation": "sdpa"}
        self.model = AutoModelForCausalLM.from_pretrained(path.parent, **options).eval()

    def tokenize(self, text: str) -> list[int]:
        return self.tokenizer(text).input_ids

    def begin(self, prompt: list[int]) -> np.ndarray:
        self.past = None
        return self.extend(prompt)

    def extend(self, tokens: list[int]) -> np.ndarray:
        with torch.inference_mode():
            out = self.model(
                torch.tensor([tokens]), past_key_values=self.past, use_cache=True, logits_to_keep=1
            )
        self.past = out.past_key_values
        return out.logits[0, -1].numpy().copy()


def greedy(model, prompt: list[int], end: int) -> list[np.ndarray]:
    """Returns the logits of each step, `[GREEDY]` of `[vocabulary]`, of a greedy continuation."""
    logits = [model.begin(prompt)]
    while len(logits) < GREEDY:
        token = int(logits[-1].argmax())
        if token == end:
            raise Failed(
                f"{model.name} ends after {len(logits)} tokens; expected a prompt with a longer "
                "answer"
            )
        logits.append(model.extend([token]))
    return logits


def steps(logits: list[np.ndarray]) -> dict:
    """Returns the two best tokens of every step, and their logits."""
    order = [np.argsort(step)[::-1][:2] for step in logits]
    best, second = zip(*[step[pair] for step, pair in zip(logits, order)], strict=True)
    tidy = lambda numbers: [round(float(number), 4) for number in numbers]
    found = {"tokens": [int(pair[0]) for pair in order], "logits": tidy(best)}
    found |= {"second_tokens": [int(pair[1]) for pair in order], "second_logits": tidy(second)}
    return {**found, "gaps": tidy(np.subtract(best, second))}


def difference(first: list[np.ndarray], second: list[np.ndarray]) -> tuple[int, float]:
    """Returns the number of steps after equal tokens, and the largest difference of logits."""
    same = 1
    while same < GREEDY and first[same - 1].argmax() == second[same - 1].argmax():
        same += 1
    return same, max(float(np.abs(a - b).max()) for a, b in zip(first[:same], second[:same]))


def make(path: Path) -> dict:
    ours, theirs = LlamaCpp(path), Transformers(path)
    end, cases = ours.llm.token_eos(), {}
    for name, text in prompts().items():
        prompt = ours.tokenize(text)
        if prompt != theirs.tokenize(text):
            raise Failed(f"{name}: the tokenizers of llama.cpp and transformers differ")
        both = [greedy(model, prompt, end) for model in (ours, theirs)]
        same, most = difference(*both)
        found = {model.name: steps(logits) for model, logits in zip((ours, theirs), both)}
        answer = ours.text(found[ours.name]["tokens"])
        cases[name] = {"prompt": text, "prompt_tokens": prompt, "answer": answer, **found}
        cases[name] |= {"steps_alike": same, "logits_differ_at_most": round(most, 4)}
        print(
            f"{name}: {len(prompt)} tokens; the first {same} steps agree, "
            f"logits differ by {most:.3f}"
        )
        for model in (ours, theirs):
            print(f"  {model.name}: smallest gap {min(found[model.name]['gaps']):.4f}")
        print(f"  {answer!r}")
    packages = {
        name: version(name) for name in ("llama-cpp-python", "transformers", "torch", "gguf")
    }
    return {"model": path.name, "sha256": SHA256, "packages": packages, "cases": cases}


def same(there: dict, now: dict) -> bool:
    """Returns True if tokens are equal, and logits are within the tolerance.

    The comparison ends at the first step at which rounding decides.
    """
    fine = there["cases"].keys() == now["cases"].keys()
    for name in there["cases"].keys() & now["cases"].keys():
        old, new = there["cases"][name], now["cases"][name]
        fine &= old["prompt_tokens"] == new["prompt_tokens"]
        for model in ("llama.cpp", "transformers"):
            a, b = old[model], new[model]
            sure = next((i for i, gap in enumerate(a["gaps"]) if gap < TOLERANCE), GREEDY)
            off = float(np.abs(np.subtract(a["logits"][:sure], b["logits"][:sure])).max(initial=0))
            alike = a["tokens"][:sure] == b["tokens"][:sure] and off <= TOLERANCE
            verdict = "" if alike else ": NOT THE SAME"
            print(f"{name}, {model}: {sure} steps compared, logits differ by {off:.4f}{verdict}")
            fine &= alike
    return fine


def dumps(document: dict) -> str:
    """Formats JSON with each list of numbers on one line."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return re.sub(r"\[\n[-\d.,\s]+\]", lambda numbers: re.sub(r"\s", "", numbers[0]), text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", type=Path, default=MODEL, metavar="FILE", help="the GGUF file")
    parser.add_argument(
        "--check", action="store_true", help="compare with the existing file, and write nothing"
    )
    args = parser.parse_args()
    torch.set_num_threads(2)
    try:
        if not fetching.is_present(args.model, SHA256):
            raise Failed(f"{args.model}: does not exist; download it with tools/get_smollm2.py")
        found = make(args.model)
        if args.check:
            return 0 if same(json.loads(args.output.read_text()), found) else 1
        args.output.write_text(dumps(found))
    except (Failed, OSError) as error:
        print(f"make_smollm2_golden: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
