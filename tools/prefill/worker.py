"""Worker process that reads prompts with another library.

    python worker.py CONTENDER FILE.gguf THREADS CONTEXT

Standard output has a line of JSON when the model is loaded, and a line for each list of token ids
on standard input, with the time to read them and the likeliest next token.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path


class Torch:
    """Hugging Face transformers on PyTorch with dequantised weights and SDPA attention."""

    def __init__(self, path: Path, threads: int, dtype: str) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        from transformers import AutoModelForCausalLM, logging

        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.torch = torch
        options = {
            "gguf_file": path.name,
            "dtype": getattr(torch, dtype),
            "attn_implementation": "sdpa",
        }
        self.model = AutoModelForCausalLM.from_pretrained(path.parent, **options).eval()

    def read(self, tokens: list[int]) -> int:
        """Returns the likeliest next token."""
        with self.torch.inference_mode():
            ids = self.torch.tensor([tokens])
            return int(self.model(ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax())


class LlamaCpp:
    """llama.cpp, which computes with the quantised weights."""

    def __init__(self, path: Path, threads: int, context: int, flash: bool) -> None:
        import llama_cpp
        import numpy

        self.numpy = numpy
        sizes = {"n_ctx": context, "n_batch": 512, "n_ubatch": 512}
        threads = {"n_threads": threads, "n_threads_batch": threads}
        self.llm = llama_cpp.Llama(str(path), **sizes, **threads, flash_attn=flash, verbose=False)

    def read(self, tokens: list[int]) -> int:
        """Returns the likeliest next token."""
        self.llm.reset()
        self.llm.eval(tokens)  # Computes the logits of the last token of each batch only.
        pointer = self.llm._ctx.get_logits_ith(-1)
        return int(self.numpy.ctypeslib.as_array(pointer, shape=(self.llm.n_vocab(),)).argmax())


CONTENDERS = {
    "torch-f32": lambda path, threads, context: Torch(path, threads, "float32"),
    "torch-bf16": lambda path, threads, context: Torch(path, threads, "bfloat16"),
    "llama.cpp": lambda path, threads, context: LlamaCpp(path, threads, context, flash=False),
    "llama.cpp-flash": lambda path, threads, context: LlamaCpp(path, threads, context, flash=True),
}


def timed(contender, tokens: list[int]) -> dict:
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    best = contender.read(tokens)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return {"tokens": len(tokens), "next": best, "seconds": seconds, "user": user, "system": system}


def main() -> None:
    name, path, threads, context = sys.argv[1:]
    # Output of the libraries goes to standard error, not between the lines of JSON.
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contender = CONTENDERS[name](Path(path), int(threads), int(context))
    print(json.dumps("ready"), file=lines, flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(contender, json.loads(line))), file=lines, flush=True)


if __name__ == "__main__":
    main()
