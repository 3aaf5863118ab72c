#!/usr/bin/env python3
"""Tests of bench_prefill.py without models and packages, to be run by hand.

python3 tools/test_bench_prefill.py
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from fetching import Failed
from prefill import contenders, table
from prefill.contenders import Ours, Peer, Prompt
from prefill.prompts import cut
from prefill.table import OURS, Reading, Timed

PROMPT = Prompt("a b c d", [1, 2, 3, 4])


def timed(name, seconds, tokens=100, user=3.0, system=1.0):
    return Timed(name, tokens, " so", [Reading(second, user, system) for second in seconds])


class Table(unittest.TestCase):
    def test_statistics_of_rounds(self):
        one = timed("one", [4.0, 1.0, 2.0])
        self.assertEqual((one.seconds(), one.rate(), one.system_share()), (2.0, 50.0, 0.25))
        self.assertEqual(timed("idle", [1.0], user=0.0, system=0.0).system_share(), None)

    def test_ratios_are_those_within_rounds(self):
        """The result is the median of 2, 8 and 3, not the ratio of the medians 4 and 1."""
        self.assertEqual(timed("one", [4.0, 8.0, 3.0]).ratio(timed(OURS, [2.0, 1.0, 1.0])), 3.0)
        self.assertRaises(ValueError, timed("one", [1.0]).ratio, timed(OURS, [1.0, 2.0]))

    def test_one_table_for_each_length(self):
        results = [
            timed(OURS, [0.5]),
            timed("other", [1.0]),
            timed(OURS, [2.0], 1000),
            timed("other", [1.0], 1000),
        ]
        lines = [line for line in table.markdown(results).splitlines() if line.startswith("| ")]
        self.assertEqual([line for line in lines if "---" not in line and "seconds" not in line], [
            "| vattention | 0.5 | 200 | 1.00 | 25.0% | `' so'` |",
            "| other | 1 | 100 | 2.00 | 25.0% | `' so'` |",
            "| vattention | 2 | 500 | 1.00 | 25.0% | `' so'` |",
            "| other | 1 | 1000 | 0.50 | 25.0% | `' so'` |",
        ])  # fmt: skip
        self.assertEqual(table.markdown(results).count("tokens\n"), 2)
        alone = table.markdown([timed("other", [1.0])])
        self.assertIn("| other | 1 | 100 |  | 25.0% |", alone)

    def test_summary_is_json(self):
        found = json.loads(json.dumps(timed("one", [4.0, 1.0, 2.0]).summary()))
        self.assertEqual((found["seconds"], found["tokens_per_second"]), (2.0, 50.0))
        self.assertEqual(found["rounds"][0], {"seconds": 4.0, "user": 3.0, "system": 1.0})


class Prompts(unittest.TestCase):
    def test_the_beginning_is_preferred(self):
        encode, decode = lambda text: list(text.encode()), bytes
        self.assertEqual(cut("abc def", 5, encode, decode).text, "abc d")
        with self.assertRaisesRegex(Failed, "7 tokens here, expected at least 8"):
            cut("abc def", 8, encode, decode)

    def test_a_part_may_begin_later(self):
        """The tokenizer has tokens of three letters, but another one for short texts in `abc`."""
        decode = lambda tokens: "".join(tokens).encode()

        def encode(text):
            cut = [text[i : i + 3] for i in range(0, len(text), 3)]
            return cut if len(text) > 9 or not text.startswith("abc") else ["?"]

        self.assertEqual(cut("abc def ghi jkl", 3, encode, decode).text, "def ghi j")
        never = lambda text: encode(text) if len(text) > 9 else []
        with self.assertRaisesRegex(Failed, "0 tokens here|no part"):
            cut("abc def ghi jkl", 3, never, decode)


class Readers(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)

    def ours(self, body):
        program = self.folder / "vattention"
        program.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
        program.chmod(0o755)
        return Ours(program, self.folder / "m.gguf", self.folder / "p.toml", 3)

    def test_ours_reads_the_prompt_and_reports_its_own_time(self):
        ours = self.ours("""
option = dict(zip(sys.argv[2::2], sys.argv[3::2]))
words = open(option["--context"]).read().split()
assert sys.argv[1] == "generate" and option["--tokens"] == "1"
assert os.environ["RAYON_NUM_THREADS"] == "3"
found = {"tokens": {"context": len(words)}, "prefill_seconds": 1.5}
found["answer"] = option["--model"][-6:]
sum(i * i for i in range(2_000_000))
json.dump(found, open(option["--json"], "w"))""")
        reading, answer = ours.read(PROMPT)
        self.assertEqual((reading.seconds, answer), (1.5, "m.gguf"))
        self.assertGreater(reading.user, 0.02)
        with self.assertRaisesRegex(Failed, "read 4 tokens, expected 3, as the other contenders"):
            ours.read(Prompt("a b c d", [1, 2, 3]))

    def test_ours_fails(self):
        with self.assertRaisesRegex(Failed, "no such key"):
            self.ours("sys.exit('no such key')").read(PROMPT)
        with self.assertRaisesRegex(Failed, "expected prefill_seconds"):
            self.ours("json.dump({}, open(sys.argv[-1], 'w'))").read(PROMPT)
        missing = Ours(self.folder / "none", self.folder, self.folder, 1)
        with self.assertRaisesRegex(Failed, "expected the program"):
            missing.read(PROMPT)

    def peer(self, body):
        worker = self.folder / "worker.py"
        worker.write_text(f"import json, sys\n{body}\n")
        with mock.patch.object(contenders, "WORKER", worker):
            peer = Peer("other", self.folder, 1, 8)
        self.addCleanup(peer.close)
        return peer

    def test_a_peer_reads_several_prompts(self):
        peer = self.peer("""
print('"ready"', flush=True)
for turn, line in enumerate(sys.stdin):
    found = {"tokens": len(json.loads(line)), "next": turn, "seconds": 0.5, "user": 1, "system": 2}
    print(json.dumps(found), flush=True)""")
        peer.warm_up(PROMPT)
        self.assertEqual(peer.read(PROMPT), (Reading(0.5, 1, 2), 1))
        self.assertEqual(peer.read(PROMPT)[1], 2)

    def test_errors_of_a_peer(self):
        with self.assertRaisesRegex(Failed, "(?s)other ended with status 1.*no package"):
            self.peer("sys.exit('no package')")
        peer = self.peer(
            "print('\"ready\"', flush=True); sys.stdin.readline(); sys.exit('no memory')"
        )
        with self.assertRaisesRegex(Failed, "no memory"):
            peer.read(PROMPT)


class CommandLine(unittest.TestCase):
    def refused(self, *arguments):
        command = [sys.executable, Path(__file__).with_name("bench_prefill.py"), *arguments]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_invalid_options(self):
        self.assertIn(
            "expected different ones of vattention",
            self.refused("--contenders", "vattention,candle"),
        )
        self.assertIn("--rounds", self.refused("--rounds", "0"))
        self.assertIn("--tokens", self.refused("--tokens", "1,0"))

    def test_models_and_packages(self):
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / "other.gguf"
            other.write_bytes(b"PK no model")
            found = self.refused("--model", other, "--contenders", "vattention")
            self.assertTrue(
                "expected a GGUF file" in found or "llama_cpp not installed" in found, found
            )


if __name__ == "__main__":
    unittest.main()
