"""Texts for the model of `models/recall`: a number hidden among sentences, and its question."""

import json
import random

from .server import RECALL


class Needle:
    """Text that hides a number, a question for it, and the expected number."""

    def __init__(self, seed: int, sentences: int) -> None:
        words = json.loads((RECALL / "vocabulary.json").read_text())
        draw = random.Random(seed)
        key = draw.choice(words["classes"]["keys"])
        self.number = draw.choice(words["classes"]["numbers"])
        forms = words["templates"]["niah"]["one"]
        needle = words["templates"]["niah"]["needle"]
        noise = [draw.choice(words["noise"]) for _ in range(sentences)]
        found = needle.format(kinds="numbers", key=key, value=self.number)
        noise.insert(draw.randrange(sentences + 1), found)
        self.text = " ".join([forms["introduction"].format(kind="number"), *noise])
        question = forms["question"].format(kind="number", query=key)
        answer = forms["answer"].format(kind="number", query=key)
        self.question = f"{question} {answer}"

    @property
    def prompt(self) -> str:
        return f"{self.text} {self.question}"
