#!/usr/bin/env python3
"""Tests of leaderboard.py and leaderboard_page.py.

    python3 tools/test_leaderboard.py

Most tests have a small program in place of `vattention`, which logs its commands. One test measures
three methods on the shipped trace with the command that VATTENTION names, by default
target/release/vattention; it is skipped if that does not exist and VATTENTION is not set.
"""

import contextlib
import html.parser
import io
import json
import math
import os
import re
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path
from unittest import mock

import leaderboard
import leaderboard_page as page

KINDS = ["prose", "code"]

# The program in place of `vattention`. It writes outputs of the same form, in which the error of a
# pipeline is the number in its name, times 1 on prose and 2 on code. It fails if its command has
# the words of the file `fail`.
PROGRAM = r"""#!{python}
import hashlib, json, re, sys
from pathlib import Path

folder = Path(__file__).parent
command = sys.argv[1:]
line = " ".join(command)
with open(folder / "log", "a") as log:
    log.write(line + "\n")
fail = folder / "fail"
if fail.exists() and all(word in line for word in fail.read_text().split()):
    sys.exit("error: this was expected to fail")

def values(option):
    begin = command.index(option) + 1
    end = next((i for i in range(begin, len(command)) if command[i].startswith("-")), len(command))
    return command[begin:end]

def name_of(path):
    return re.search(r'name = "(.*)"', Path(path).read_text())[1]

def first_values(begin=1):
    end = next(i for i in range(begin, len(command)) if command[i].startswith("-"))
    return command[begin:end]

inputs = [path for path in command if Path(path).is_file()]
inputs = [path for path in inputs if path.endswith((".toml", ".safetensors"))]
digest = lambda path: hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]
run = {"inputs": {path: digest(path) for path in inputs}, "vattention": "1 (abc)",
       "machine": {"cpu": None, "cores": 2, "arch": "x86_64"}}
report = {"run": run}
verb = command[0]
if verb == "capture":
    Path(values("-o")[0]).write_text(values("--text")[0])
    sys.exit()
if verb == "tune":
    text = Path(command[1]).read_text()
    base = Path(command[1]).parent / re.search(r'base = "(.*)"', text)[1]
    method = base.stem
    run["inputs"][str(base)] = digest(base)
    out = Path(values("--output")[0])
    out.mkdir()
    report["tried"] = [{"settings": [["page", "8"]], "set": "size 0.1", "score": {"density": 0.3}}]
    report["best"], report["left_out"] = [], []
    for density in values("--at")[0].removeprefix("density=").split(","):
        meets = not ("least" in method and density == "0.02")
        report["best"].append({"pipeline": method, "goal": f"density={density}",
                               "tried": 0 if meets else None, "nearest": None if meets else 0})
        if meets:
            kind = "oracle-top-k" if "oracle" in method else "sink"
            text = f'name = "{method}, density={density}"\ntype = "{kind}"\n'
            (out / f"{method}-density-{density}.toml").write_text(text)
elif verb == "compare":
    report["pipelines"] = []
    for name in map(name_of, first_values()):
        method, density = name.split(", density=")
        error = float(re.search(r"\d+", method)[0]) / 100 / float(density)
        if "code" in values("--trace")[0]:
            error *= 2
        promise = {"promise": {"epsilon": 0.1, "delta": 0.1}, "kind": "asymptotic",
                   "violations": {"violated": 1, "checked": 50}}
        # Some read too much of the code, and some of these have no setting to search.
        read = float(density)
        if "code" in values("--trace")[0] and ("wide" in method or "fixed" in method):
            read *= 1.01 if "--density" in command else 1.5
        if "--density" in command and "fixed" in method:
            sys.exit("error: nothing to search")
        report["pipelines"].append({
            "pipeline": name, "output_error": {"mean": error}, "density": read,
            "index_bytes_per_token": 40 - float(re.search(r"\d+", method)[0]),
            "guarantee": promise if "promise" in method else None})
elif verb == "bench":
    report["rows"] = [{"pipeline": "dense", "speedup_over_dense": 1.0}]
    report["rows"][0]["density"] = 1.0
    report["rows"] += [{"pipeline": name_of(path), "speedup_over_dense": 4.0, "density": 0.3}
                       for path in first_values()]
elif verb == "evaluate":
    variants = [{"variant": "dense", "pipeline": "dense", "accuracy": 0.6, "to_dense": []}]
    for path in values("--pipelines")[1:]:
        difference = {"mean": -0.1, "low": -0.2, "high": 0.05, "cases": 10}
        variants.append({"variant": name_of(path), "pipeline": name_of(path), "accuracy": 0.5,
                         "density": 0.1, "to_dense": [difference]})
    report["variants"] = variants
Path(values("--json")[0]).write_text(json.dumps(report))
"""

SETTINGS = """
methods = [{methods}]
note = "The note of this board."
model = "model.gguf"
densities = [0.02, 0.1]
tokens = 64
layers = "9,23"
queries = 8

[texts]
prose = "prose.txt"
code = "code.txt"

[tuning]
layers = "9"
queries = 4
rungs = 1
texts = {{ manual = "manual.txt" }}

[speed]
tokens = 1024
threads = 1
dtype = "bf16"
cold_bytes = 1000
seconds = 0.5

[ruler]
tasks = ["vt"]
context = 64
cases = 2
densities = [0.1]
haystack = "prose.txt"
dtype = "bf16"
"""


class BoardTest(unittest.TestCase):
    """Runs of the script on boards in a temporary folder."""

    def setUp(self):
        kept = tempfile.TemporaryDirectory(suffix=" with a space")
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.program = self.folder / "vattention"
        self.program.write_text(PROGRAM.replace("{python}", "/usr/bin/env python3"))
        self.program.chmod(0o755)
        self.methods = [self.write_method(f"method-{number}") for number in (1, 2, 3)]
        self.make_board("board")

    def write_method(self, name):
        path = self.folder / f"{name}.toml"
        path.write_text('[[selectors]]\ntype = "sink"\n')
        return path

    def make_board(self, name):
        board = self.folder / name
        board.mkdir()
        methods = ", ".join(json.dumps(str(method)) for method in self.methods)
        (board / "settings.toml").write_text(SETTINGS.format(methods=methods))
        return board

    def run_board(self, *arguments, board="board", code=0):
        """Runs the leaderboard, and returns its messages on stderr."""
        out, errors = io.StringIO(), io.StringIO()
        line = ["leaderboard", *map(str, arguments), "--vattention", str(self.program)]
        line += ["--board", str(self.folder / board), "--work", str(self.folder / f"{board}-work")]
        with mock.patch.object(sys, "argv", line):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                found = leaderboard.main()
        self.assertEqual(found, code, errors.getvalue())
        self.said = out.getvalue()
        return errors.getvalue()

    def read_rows(self, board="board"):
        paths = sorted((self.folder / board / "rows").glob("*.json"))
        return {path.stem: path.read_text() for path in paths}

    def take_log(self):
        """Returns the commands since the last call: the verb, and the method or the text."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        found = []
        for line in lines:
            method = re.search(r"method-\w+", line)
            text = re.search(r"(?:measured|tuning)-(\w+)", line.partition("--trace")[2])
            words = [line.split()[0], method and method[0], text and text[1]]
            found.append(" ".join(word for word in words if word))
        return found


class Commands(BoardTest):
    """The steps, with a program in place of `vattention`."""

    def test_a_run_makes_rows_and_the_page(self):
        self.methods[1].write_text('base = "method-2.toml"\n')
        self.run_board()
        log = self.take_log()
        self.assertEqual([line.split()[0] for line in log[:3]], ["capture"] * 3)
        one = ["tune", "compare", "compare", "bench"]
        self.assertEqual([line.split()[0] for line in log[3:]], one * 3 + ["evaluate"])
        row = json.loads(self.read_rows()["method-1"])
        cell = row["cells"]["0.1"]
        self.assertEqual(cell["texts"]["prose"], {"error": 0.1, "read": 0.1, "index": 39.0})
        self.assertEqual(cell["texts"]["code"]["error"], 0.2)
        self.assertEqual(
            (cell["time"], cell["ruler"]["score"]), ({"relative": 0.25, "read": 0.3}, 0.5)
        )
        self.assertEqual(cell["settings"], "page = 8, size 0.1")
        self.assertEqual((cell["promise"], cell["scans"]), (None, False))
        # RULER was measured at one density only.
        self.assertEqual(row["cells"]["0.02"]["ruler"], None)
        self.assertIn("method-3", (self.folder / "board/index.html").read_text())
        self.assertNotIn(str(self.folder), "".join(self.read_rows().values()))

    def test_an_interrupted_run_continues(self):
        (self.folder / "fail").write_text("compare method-2 code")
        errors = self.run_board(code=1)
        self.assertIn("method-2", errors)
        self.assertIn("this was expected to fail", errors)
        # The other methods are whole, and the row of this one lacks a text.
        rows = self.read_rows()
        self.assertEqual(list(json.loads(rows["method-2"])["cells"]["0.1"]["texts"]), ["prose"])
        text = (self.folder / "board/index.html").read_text()
        self.assertIn("method-2 (no result on code)", text)
        self.take_log()
        (self.folder / "fail").unlink()
        self.run_board()
        self.assertEqual(self.take_log(), ["compare method-2 code"])
        self.assertEqual(self.read_rows().keys(), rows.keys())
        self.run_board()
        self.assertEqual(self.take_log(), [])

    def test_an_output_that_is_cut_off_is_made_again(self):
        self.run_board()
        self.take_log()
        (report,) = self.folder.glob("board-work/*/method-1/compare-prose.json")
        report.write_text(report.read_text()[:100])
        self.run_board()
        self.assertEqual(self.take_log(), ["compare method-1 prose"])

    def test_a_changed_method_is_measured_again(self):
        self.run_board()
        self.take_log()
        again = ["tune method-2 manual", "compare method-2 prose", "compare method-2 code"]
        again += ["bench method-2 prose"]
        self.methods[1].write_text('[[selectors]]\ntype = "window"\n')
        self.run_board()
        self.assertEqual(self.take_log(), again)
        # A pipeline becomes a grid.
        self.methods[1].write_text('base = "method-1.toml"\n')
        self.run_board()
        self.assertEqual(self.take_log(), [*again, "evaluate method-1"])

    def test_shards_give_the_rows_of_a_single_run(self):
        self.run_board()
        alone = self.read_rows()
        self.make_board("parts")
        self.run_board("--shard", "1/2", board="parts")
        self.assertEqual(list(self.read_rows("parts")), ["method-1", "method-3"])
        self.assertFalse((self.folder / "parts/index.html").exists())
        self.run_board("--shard", "2/2", board="parts")
        self.assertEqual(self.read_rows("parts"), alone)
        self.take_log()
        self.run_board("--steps", "page", board="parts")
        self.assertEqual(self.take_log(), [])
        pages = [(self.folder / name / "index.html").read_text() for name in ("board", "parts")]
        self.assertEqual(*pages)

    def test_a_row_is_added_by_one_command(self):
        self.run_board()
        before = self.read_rows()
        self.take_log()
        added = self.write_method("method-4-promise")
        self.run_board(added)
        self.assertEqual({line.split()[1] for line in self.take_log()}, {"method-4"})
        rows = self.read_rows()
        added = json.loads(rows.pop("method-4-promise"))
        self.assertEqual(rows, before)
        self.assertEqual(added["file"], "method-4-promise.toml")
        self.assertEqual(added["cells"]["0.1"]["violations"], [2, 100])
        text = (self.folder / "board/index.html").read_text()
        self.assertIn("error ≤ 0.1 with probability 0.9, asymptotic; 2 of 100 rows", text)

    def test_other_densities_are_searched_again(self):
        self.methods = [self.write_method(f"method-{name}") for name in ("6-wide", "7-fixed")]
        self.run_board(*self.methods)
        log = [line for line in self.take_log() if line.startswith("compare")]
        # The search runs at both densities, and on the text that was read too much.
        once = [f"compare method-{{}} {kind}" for kind in ("prose", "code", "code", "code")]
        self.assertEqual(log, [line.format(6) for line in once] + [line.format(7) for line in once])
        rows = {stem: json.loads(text) for stem, text in self.read_rows().items()}
        texts = {stem: row["cells"]["0.1"]["texts"] for stem, row in rows.items()}
        self.assertEqual(texts["method-6-wide"]["code"]["read"], 0.101)
        self.assertEqual(texts["method-7-fixed"]["code"]["read"], 0.15)
        text = (self.folder / "board/index.html").read_text()
        self.assertIn(">12.5 % ▲</td>", text)
        self.assertNotIn(">10.1 % ▲</td>", text)
        self.run_board(*self.methods)
        self.assertEqual(self.take_log(), [])

    def test_missing_cells_are_shown(self):
        least = self.write_method("method-5-least")
        (self.folder / "fail").write_text("bench method-5")
        self.run_board(least, code=1)
        row = json.loads(self.read_rows()["method-5-least"])
        self.assertEqual(list(row["cells"]), ["0.1"])
        self.assertEqual(row["cells"]["0.1"]["time"], None)
        text = (self.folder / "board/index.html").read_text()
        self.assertIn("Missing: method-5-least (no setting reads so little", text)
        # The time follows the size of the index.
        self.assertIn(">35</td><td>-</td>", text)

    def test_rows_that_cannot_be_compared_are_refused(self):
        self.run_board()
        settings = self.folder / "board/settings.toml"
        text = settings.read_text()
        # Other methods are no other settings; another length is.
        settings.write_text(text.replace("methods = [", 'methods = ["nowhere.toml", '))
        self.run_board("--steps", "page")
        self.assertIn("3 rows", self.said)
        settings.write_text(text.replace("The note", "Another note"))
        self.run_board("--steps", "page")
        self.assertIn("Another note of", (self.folder / "board/index.html").read_text())
        settings.write_text(text.replace("tokens = 64", "tokens = 65"))
        self.assertIn("found no row", self.run_board("--steps", "page", code=2))
        self.assertEqual(self.said.count("measured with other settings"), 3)

    def test_another_file_of_the_same_name_replaces_no_row(self):
        self.run_board()
        before = self.read_rows()
        self.take_log()
        (self.folder / "other").mkdir()
        same = self.folder / "other/method-1.toml"
        same.write_text(f'base = "{self.methods[0]}"\n')
        # A file outside of the repository is known by its name alone.
        with mock.patch.object(leaderboard, "name_file", str):
            self.assertIn("is the row of method-1.toml", self.run_board(same, code=1))
        self.assertIn("tune method-1 manual", self.take_log())
        self.assertEqual(self.read_rows(), before)

    def test_bad_input_is_refused(self):
        self.assertIn("nowhere.toml: expected", self.run_board("nowhere.toml", code=2))
        (self.folder / "other").mkdir()
        same = self.folder / "other/method-1.toml"
        same.write_text("")
        self.assertIn("the same name", self.run_board(self.methods[0], same, code=2))
        settings = self.folder / "board/settings.toml"
        text = settings.read_text()
        for old, new, expected in [
            ("tokens = 64", "token = 64", "missing or unknown: token, tokens"),
            ("cases = 2", 'cases = "2"', "ruler.cases: expected int"),
            ("tokens = 64", "tokens =", "expected a file in TOML"),
        ]:
            settings.write_text(text.replace(old, new))
            self.assertIn(expected, self.run_board(code=2))

    def test_tables_replace_those_of_a_document(self):
        self.run_board("--steps", "trace,tune,compare")
        settings = leaderboard.read_settings(self.folder / "board")
        document = self.folder / "methods.md"
        begin, end = leaderboard.MARKS
        document.write_text(f"before\n{begin}to be replaced\n{end}after\n")
        with contextlib.redirect_stdout(io.StringIO()):
            leaderboard.make_page(self.folder / "board", settings, document)
            first = document.read_text()
            leaderboard.make_page(self.folder / "board", settings, document)
        self.assertEqual(document.read_text(), first)
        self.assertTrue(first.startswith(f"before\n{begin}\n") and first.endswith(f"{end}after\n"))
        self.assertNotIn("to be replaced", first)
        for line in first.splitlines():
            self.assertTrue(len(line) <= 100 or line.startswith("|"), line)
            if line.startswith("|"):
                columns = 3 + len(settings["densities"])
                self.assertEqual(line.count("|"), columns + 1, line)
                self.assertLessEqual(columns, 7)
        document.write_text("no marks\n")
        with self.assertRaises(leaderboard.Failed), contextlib.redirect_stdout(io.StringIO()):
            leaderboard.make_page(self.folder / "board", settings, document)
        self.assertEqual(document.read_text(), "no marks\n")


def make_row(stem, errors, index=10.0, read=0.1, scans=False):
    """Returns a row with a result at 10 % on each kind of text."""
    texts = {
        kind: {"error": error, "read": read, "index": index} for kind, error in zip(KINDS, errors)
    }
    cell = {"texts": texts, "promise": None, "violations": [0, 0], "scans": scans}
    cell |= {"settings": "", "time": None, "ruler": None}
    row = {"method": stem.title(), "stem": stem, "cells": {"0.1": cell}, "missing": {}}
    return row | {"machine": "a machine", "vattention": "1", "board": "", "file": f"{stem}.toml"}


class Ranking(unittest.TestCase):
    def rank(self, *rows):
        return page.rank(list(rows), KINDS, 0.1)

    def find_front(self, *rows):
        return [standing.stem for standing in self.rank(*rows) if standing.front]

    def test_methods_are_sorted_by_mean_error(self):
        table = self.rank(make_row("a", [0.1, 0.5]), make_row("b", [0.2, 0.2]))
        self.assertEqual([standing.stem for standing in table], ["b", "a"])
        self.assertAlmostEqual(table[1].error, 0.3)

    def test_the_front_has_the_methods_that_no_other_beats(self):
        best, small = make_row("best", [0.1, 0.1], 20), make_row("small", [0.3, 0.3], 5)
        worse = make_row("worse", [0.2, 0.2], 20)
        self.assertEqual(self.find_front(best, small, worse), ["best", "small"])
        # Equal methods do not beat each other.
        self.assertEqual(len(self.find_front(best, make_row("same", [0.1, 0.1], 20))), 2)

    def test_reads_beyond_the_density_count_and_fewer_reads_do_not(self):
        usual = make_row("usual", [0.1, 0.1])
        more = make_row("more", [0.05, 0.05], read=0.12)
        self.assertEqual(self.find_front(usual, more), ["more", "usual"])
        little_more = make_row("more", [0.05, 0.05], read=0.104)
        self.assertEqual(self.find_front(usual, little_more), ["more"])
        less = make_row("less", [0.2, 0.2], read=0.05)
        self.assertEqual(self.find_front(usual, less), ["usual"])

    def test_methods_that_compute_all_scores_take_no_part(self):
        oracle = make_row("oracle", [0.01, 0.01], 0, scans=True)
        self.assertEqual(self.find_front(oracle, make_row("a", [0.1, 0.1])), ["a"])

    def test_ratios_are_paired_by_text(self):
        table = self.rank(make_row("priority", [0.1, 0.4]), make_row("b", [0.2, 1.6]))
        self.assertIsNone(table[0].ratio)
        mean, low, high = table[1].ratio
        # Logarithms of the ratios are log 2 and log 4: their standard error is log(2) / 2.
        half = 12.706 * math.log(2) / 2
        self.assertAlmostEqual(mean, math.sqrt(8))
        self.assertAlmostEqual(math.log(high / mean), half)
        self.assertAlmostEqual(math.log(mean / low), half)
        # Equal ratios have an interval without width, however different the texts are.
        equal = self.rank(make_row("priority", [0.001, 0.4]), make_row("b", [0.003, 1.2]))
        self.assertAlmostEqual(equal[1].ratio[1], 3)
        self.assertAlmostEqual(equal[1].ratio[2], 3)

    def test_ratios_without_a_reference_an_interval_or_a_logarithm(self):
        rows = [make_row("a", [0.1, 0.1]), make_row("b", [0.2, 0.2])]
        self.assertAlmostEqual(self.rank(*rows)[1].ratio[0], 2, msg="relative to the best")
        exact = make_row("dense", [0.0, 0.0])
        self.assertIsNone(self.rank(*rows, exact)[1].ratio)
        single = page.rank(rows, ["prose"], 0.1)[1].ratio
        self.assertEqual(single[1:], (None, None))
        self.assertEqual(page.show_ratio(single), "2.00")

    def test_quantiles_of_student(self):
        # The tail beyond each quantile has a probability of 2.5 %.
        for freedom, quantile in enumerate(page.T975, 1):
            self.assertAlmostEqual(integrate_tail(freedom, quantile), 0.025, 4)

    def test_a_method_without_a_text_is_not_ranked(self):
        rows = [make_row("a", [0.1, 0.1]), make_row("b", [0.05])]
        self.assertEqual([standing.stem for standing in self.rank(*rows)], ["a"])
        self.assertEqual(page.list_missing(rows, KINDS, 0.1), ["B (no result on code)"])
        self.assertEqual(len(page.list_missing(rows, KINDS, 0.2)), 2)


def integrate_tail(freedom, quantile):
    """Returns Student's probability beyond a quantile, by Simpson's rule."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)

    def find_density(t):
        return scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)

    steps = 4000
    width = quantile / steps
    weights = [1, *([4, 2] * (steps // 2))][:-1] + [1]
    return 0.5 - width / 3 * sum(w * find_density(i * width) for i, w in enumerate(weights))


class Page(unittest.TestCase):
    def setUp(self):
        self.settings = leaderboard.tomllib.loads(SETTINGS.format(methods=""))
        self.rows = [
            make_row(f"method {i}", [0.1 + 0.001 * i, 0.2], 3.0 * (i % 7)) for i in range(25)
        ]
        self.rows.append(make_row("<b>&", [0.5, 0.5]))

    def test_html_is_well_formed_and_needs_no_other_file(self):
        text = page.make_page(self.rows, self.settings)
        checker = TagChecker()
        checker.feed(text)
        checker.close()
        self.assertEqual(checker.open, [])
        self.assertIn("&lt;B&gt;&amp;", text)
        self.assertNotRegex(text, r"<B>|src=|href=|@import|https?://(?!www\.w3\.org/2000/svg)")
        plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        # A plot of all densities, and one of the density that has results.
        self.assertEqual(len(plots), 2)
        for plot in plots:
            root = xml.etree.ElementTree.fromstring(plot)
            names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
            for row in self.rows:
                self.assertIn(row["method"], names)

    def test_labels_do_not_overlap(self):
        places = [10, 10, 11, 50, 95, 96, 97]
        moved = page.spread(places, 10, 0, 100)
        self.assertTrue(all(b - a >= 10 for a, b in zip(moved, moved[1:])), moved)
        self.assertTrue(moved[0] >= 0 and moved[-1] <= 100)
        taken = [(95, 95, 105, 105)]
        for _ in range(6):
            box = page.find_room((100, 100), 50, taken)
            self.assertFalse(any(page.overlap(box, other) for other in taken))
            taken.append(box)

    def test_the_table_has_a_line_for_each_method(self):
        late = make_row("late", [0.3, 0.3])
        late["cells"] = {"0.2": late["cells"]["0.1"]}
        late["cells"]["0.2"]["texts"]["prose"]["read"] = 0.5
        rows = [make_row("b", [0.2, 0.2], 30), make_row("a", [0.1, 0.1]), make_row("c", [1, 1])]
        rows.insert(0, late)
        settings = self.settings | {"densities": [0.1, 0.2]}
        lines = page.make_markdown(rows, settings).splitlines()
        lines = [line for line in lines if line.startswith("|")][2:]
        self.assertEqual(lines[0], "| A (10) | **0.1000** | - | - | - |")
        self.assertEqual(lines[1], "| B (30) | 0.2000 | - | - | - |")
        self.assertEqual(lines[3], "| Late (10) | - | **0.3000** ▲ | - | - |")
        self.assertEqual(len(lines), 4)

    def test_an_empty_density_has_no_plot(self):
        self.assertEqual(page.plot_curves({0.1: []}, {}), "")
        text = page.make_page([make_row("dense", [0.0, 0.0])], self.settings)
        self.assertNotIn("<svg", text)


class TagChecker(html.parser.HTMLParser):
    """Checks that every tag is closed, in the right order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            raise AssertionError(f"</{tag}> closes {self.open[-1:]} at {self.getpos()}")
        self.open.pop()


class EndToEnd(BoardTest):
    """The real command on the shipped trace."""

    def test_three_methods_on_the_shipped_trace(self):
        default = leaderboard.ROOT / "target/release/vattention"
        self.program = Path(os.environ.get("VATTENTION", default))
        if "VATTENTION" not in os.environ and not default.exists():
            self.skipTest(f"{default} does not exist")
        trace = json.dumps(str(leaderboard.ROOT / "data/smollm2.safetensors"))
        names = ("priority", "quest", "oracle-top-k")
        self.methods = [leaderboard.ROOT / f"configs/{name}.toml" for name in names]
        board = self.make_board("real")
        settings = (board / "settings.toml").read_text()
        settings = settings.replace('"prose.txt"\ncode = "code.txt"', trace)
        settings = settings.replace('"manual.txt"', trace).replace('"9"', '"9,23"')
        settings = settings.replace("[0.02, 0.1]", "[0.1]").replace("queries = 8", "queries = 2")
        (board / "settings.toml").write_text(settings.replace("queries = 4", "queries = 2"))
        steps = "trace,tune,compare,page"
        self.run_board("--steps", steps, board="real")
        rows = {stem: json.loads(text) for stem, text in self.read_rows("real").items()}
        results = {stem: row["cells"]["0.1"]["texts"]["prose"] for stem, row in rows.items()}
        for stem, result in results.items():
            self.assertLess(abs(result["read"] - 0.1), 0.021, stem)
        self.assertLess(results["priority"]["error"], results["quest"]["error"])
        self.assertEqual(results["oracle-top-k"]["index"], 0)
        self.assertTrue(rows["oracle-top-k"]["cells"]["0.1"]["scans"])
        self.assertEqual(rows["priority"]["cells"]["0.1"]["promise"]["delta"], 0.1)
        text = (board / "index.html").read_text()
        self.assertIn("priority sampling", text)
        self.run_board("--steps", steps, board="real")
        self.assertNotIn("  vattention", self.said)


if __name__ == "__main__":
    unittest.main()
