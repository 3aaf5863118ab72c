#!/usr/bin/env python3
"""Tests of get_prose.py with small packages and without a network, to be run by hand.

    python3 tools/test_get_prose.py

The tests need dpkg-deb.
"""

import contextlib
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import get_prose

PRINTED = """\
Ge1:1 In the beginning.
Ge1:2 And the earth.
Ge2:1 Thus the heavens.
1Sm1:1 Now there was: a man.
Ru1:1 Now it came to pass.
"""
PARTS = {"kjv-train.txt": {"Ge": "Genesis"}, "kjv-heldout.txt": {"1Sm": "Samuel"}}
TEXTS = {
    "kjv-train.txt": b"Genesis\n\nChapter 1\n\nIn the beginning. And the earth.\n\n"
    b"Chapter 2\n\nThus the heavens.\n",
    "kjv-heldout.txt": b"Samuel\n\nChapter 1\n\nNow there was: a man.\n",
    "vim-manual.txt": "one\ttwo \u00e9\n".encode() + b"second\n",
}
SHA256 = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}


class GetProse(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory(suffix=" with a space")
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.output = self.folder / "texts"
        for name, value in [("PARTS", PARTS), ("SHA256", SHA256)]:
            changed = mock.patch.object(get_prose, name, value)
            changed.start()
            self.addCleanup(changed.stop)

    def package(self, name, files):
        """Builds a .deb with these files."""
        root = self.folder / name
        for path, text in {"DEBIAN/control": control(name), **files}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(text.encode())
            (root / path).chmod(0o755)
        subprocess.run(["dpkg-deb", "--build", root], check=True, stdout=subprocess.DEVNULL)
        shutil.rmtree(root)
        return self.folder / f"{name}.deb"

    def packages(self, printed=PRINTED):
        """Builds packages with a `bible` that prints its data from the working folder."""
        program = f'#!/bin/sh\n[ "$*" = "-f {get_prose.ALL}" ] && cat bible.data\n'
        manual = {
            "usr_02.txt": "second\n",
            "usr_01.txt": "one\ttwo \u00e9\n",
            "usr_toc.txt": "contents\n",
            "eval.txt": "no\n",
        }
        folder = "usr/share/vim/vim90/doc"
        return [
            self.package("bible-kjv-text", {"usr/lib/bible.data": printed}),
            self.package("bible-kjv", {"usr/bin/bible": program}),
            self.package("vim-runtime", {f"{folder}/{name}": manual[name] for name in manual}),
        ]

    def get(self, *options):
        """Runs get_prose, and returns its exit code, stdout and stderr."""
        out, errors = io.StringIO(), io.StringIO()
        with mock.patch.object(
            sys, "argv", ["get_prose", "-o", str(self.output), *map(str, options)]
        ):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                code = get_prose.main()
        return code, out.getvalue(), errors.getvalue()

    def refused(self, *options):
        code, _, errors = self.get(*options)
        self.assertEqual(code, 2, errors)
        return errors

    def found(self):
        return {path.name: path.read_bytes() for path in self.output.glob("*")}

    def test_texts_of_packages(self):
        code, printed, errors = self.get("--packages", *self.packages())
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.found(), TEXTS)
        self.assertIn("public domain", printed)
        code, printed, errors = self.get("--packages", self.folder / "nowhere.deb")
        self.assertEqual((code, errors, printed.count("unchanged")), (0, "", 3))

    def test_only_missing_texts_are_written(self):
        self.output.mkdir()
        (self.output / "vim-manual.txt").write_bytes(TEXTS["vim-manual.txt"])
        before = (self.output / "vim-manual.txt").stat().st_mtime_ns
        code, printed, errors = self.get("--packages", *self.packages())
        self.assertEqual((code, errors, printed.count(", written")), (0, "", 2))
        self.assertEqual((self.output / "vim-manual.txt").stat().st_mtime_ns, before)

    def test_another_text_is_refused_and_not_changed(self):
        self.output.mkdir()
        (self.output / "kjv-heldout.txt").write_bytes(b"mine")
        self.assertIn(SHA256["kjv-heldout.txt"], self.refused("--packages", *self.packages()))
        self.assertEqual(self.found(), {"kjv-heldout.txt": b"mine"})

    def test_another_version_of_a_package(self):
        errors = self.refused("--packages", *self.packages(PRINTED.replace("earth", "moon")))
        self.assertIn("kjv-train.txt: SHA-256", errors)
        self.assertEqual(self.found(), {})

    def test_the_output_of_the_program_is_checked(self):
        self.assertIn(
            "line 1 of the Bible: 'hello'", self.refused("--packages", *self.packages("hello\n"))
        )
        self.assertIn("has no 1Sm", self.refused("--packages", *self.packages("Ge1:1 In.\n")))

    def test_packages_that_are_missing(self):
        text, program, vim = self.packages()
        self.assertIn("expected one file usr/bin/bible", self.refused("--packages", text, vim))
        self.assertIn("no user manual", self.refused("--packages", text, program))
        self.assertIn("dpkg-deb -x", self.refused("--packages", self.folder / "nowhere.deb"))
        self.assertEqual(self.found(), {})

    def test_apt_get_fails(self):
        apt = lambda command, **_: subprocess.CompletedProcess(
            command, 100, b"", b"E: Unable to locate package"
        )
        with mock.patch.object(subprocess, "run", apt):
            self.assertIn("Unable to locate package", self.refused())
        with mock.patch.dict("os.environ", {"PATH": ""}):
            self.assertIn("apt-get: No such file", self.refused())


def control(name):
    return (
        f"Package: {name}\nVersion: 1\nArchitecture: all\n"
        "Maintainer: nobody <nobody@example.org>\nDescription: a test\n"
    )


if __name__ == "__main__":
    unittest.main()
