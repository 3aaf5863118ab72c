#!/usr/bin/env python3
"""Measure methods at equal density, and make the leaderboard in docs/leaderboard.

    python3 tools/leaderboard.py                       # all methods of settings.toml
    python3 tools/leaderboard.py mine.toml             # add a row, or measure it again
    python3 tools/leaderboard.py mine.toml --vattention my-crate/target/release/vattention
    python3 tools/leaderboard.py --shard 2/8           # every eighth method, from the second
    python3 tools/leaderboard.py --steps page          # only make the page and the tables

A method is a pipeline file, or a grid file of `vattention tune`. The steps are:

    trace    capture traces of the model on each text
    tune     choose the settings of each method for each density, on texts of their own
    compare  measure the chosen pipelines on the other texts; where a pipeline reads another share
             than requested, search its size, mass, threshold or epsilon again by its density alone
    speed    measure the time of a decode step, beside dense attention
    ruler    measure the answers of the model
    page     make index.html, and the table of docs/methods.md

`settings.toml` in the folder of the board has the texts, layers, densities and tasks, which are the
same for all rows. Each finished method is a file in `rows`, to which another run can add. All
outputs of `vattention` are in --work; a step whose output is there, and whose inputs have not
changed since, is not run again. To divide the work, run shards with the same settings on any
machines, copy the files of `rows` into one folder, and run `--steps page`.

Exit codes: 0 success, 1 a measurement failed, 2 invalid input.
"""

import argparse
import functools
import hashlib
import json
import math
import os
import shutil
import sys
import tomllib
from pathlib import Path

import fetching
import leaderboard_page as page
from fetching import Failed

ROOT = Path(__file__).resolve().parents[1]
BOARD = ROOT / "docs/leaderboard"
METHODS = ROOT / "docs/methods.md"
STEPS = ["trace", "tune", "compare", "speed", "ruler", "page"]
MARKS = ("<!-- leaderboard -->\n", "<!-- end of leaderboard -->\n")

# Relative distance from the requested density up to which a pipeline is not searched again. It is
# that of the search of `vattention compare --density`.
NEAR = 0.02

# Names of the settings with their types. LOOSE ones may differ between boards with equal rows.
LOOSE = ("methods", "note")
SETTINGS = {
    "methods": list, "note": str, "model": str, "densities": list, "tokens": int, "texts": dict,
    "layers": str, "queries": int, "tuning": dict, "speed": dict, "ruler": dict,
}  # fmt: skip
NESTED = {
    "tuning": {"texts": dict, "layers": str, "queries": int, "rungs": int},
    "speed": {"tokens": int, "threads": int, "dtype": str, "cold_bytes": int, "seconds": float},
    "ruler": {
        "tasks": list, "context": int, "cases": int, "densities": list, "haystack": str,
        "dtype": str,
    },
}  # fmt: skip


# Settings and methods.


def read_toml(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failed(f"{path}: {error}; expected a file in TOML")


def read_settings(board: Path) -> dict:
    """Reads the settings of a board, and checks names and types."""
    path = board / "settings.toml"
    settings = read_toml(path)
    check_types(path, settings, SETTINGS, "")
    for name, types in NESTED.items():
        check_types(path, settings[name], types, f"{name}.")
    return settings


def check_types(path: Path, found: dict, types: dict, within: str) -> None:
    if set(found) != set(types):
        faults = ", ".join(within + name for name in sorted(set(found) ^ set(types)))
        raise Failed(f"{path}: missing or unknown: {faults}")
    for name, kind in types.items():
        if not isinstance(found[name], kind):
            raise Failed(f"{path}: {within}{name}: expected {kind.__name__}")


def identify(settings: dict) -> str:
    """Returns a digest of the settings that rows must share to be compared."""
    shared = {name: value for name, value in settings.items() if name not in LOOSE}
    text = json.dumps(shared, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def list_methods(names: list[str], base: Path) -> list[Path]:
    """Returns the files of methods, each of which is a file or all files of a folder."""
    files = []
    for name in names:
        path = base.absolute() / name
        if not path.exists():
            raise Failed(f"{name}: expected a pipeline file, a grid file, or a folder of these")
        files += sorted(path.glob("*.toml")) if path.is_dir() else [path]
    stems: dict[str, Path] = {}
    for file in files:
        other = stems.setdefault(file.stem, file)
        if other != file:
            raise Failed(f"{other} and {file} have the same name; expected one file per row")
    return files


def name_file(path: Path) -> str:
    """Returns the path within the repository, or the name of a file outside of it."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def parse_shard(text: str) -> tuple[int, int]:
    number, _, total = text.partition("/")
    if not (number.isdigit() and total.isdigit() and 1 <= int(number) <= int(total)):
        raise argparse.ArgumentTypeError(f"found {text!r}; expected I/N, such as 2/8")
    return int(number), int(total)


def parse_steps(text: str) -> list[str]:
    steps = text.split(",")
    unknown = sorted(set(steps) - set(STEPS))
    if unknown:
        known = ", ".join(STEPS)
        raise argparse.ArgumentTypeError(f"unknown step {unknown[0]!r}; expected some of {known}")
    return steps


# Files of results.


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failed(f"{path}: {error}; expected a file in JSON")


def write(path: Path, text: str) -> None:
    """Writes a file so that a reader finds the old text or the whole new text."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        os.replace(beside, path)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}; expected a file that can be written")


@functools.lru_cache
def digest(path: str, changed: int) -> str:
    """Returns the digest of a file as `vattention` writes it: the first 128 bits of SHA-256."""
    return fetching.digest(Path(path))[:32]


def is_current(report: Path, *others: Path) -> bool:
    """Returns True if an output of `vattention` is whole, and its inputs have not changed.

    `others` are files that must be among the inputs.
    """
    try:
        inputs = json.loads(report.read_text())["run"]["inputs"]
    except (OSError, ValueError, KeyError):
        return False
    return {str(path) for path in others} <= set(inputs) and all(
        Path(path).is_file() and digest(path, Path(path).stat().st_mtime_ns) == expected
        for path, expected in inputs.items()
    )


# The measurements.


class Runner:
    """Steps of the measurement, whose outputs are in a folder for these settings."""

    def __init__(self, settings: dict, work: Path, vattention: Path, shard: tuple[int, int]):
        self.settings = settings
        self.work = work / identify(settings)
        self.vattention = vattention.absolute()
        self.shard = shard
        self.failures: list[str] = []

    def call(self, *arguments) -> None:
        """Runs a command of `vattention` from the root of the repository."""
        # The last argument is the output.
        print("  vattention", arguments[0], "->", Path(arguments[-1]).name, flush=True)
        fetching.run([self.vattention, *arguments], cwd=ROOT)

    def attempt(self, name: str, step, *arguments) -> None:
        """Runs a step, and records its failure, so that other methods are still measured."""
        try:
            step(*arguments)
        except Failed as error:
            self.failures.append(f"{name}: {error}")
            print(f"leaderboard: {name}: {error}", file=sys.stderr)

    def find_trace(self, text: str, use: str) -> Path:
        """Returns the trace of a text, which may be a trace itself."""
        path = ROOT / text
        return (
            path if path.suffix == ".safetensors" else self.work / f"{use}-{path.stem}.safetensors"
        )

    def list_traces(self) -> dict[str, Path]:
        """Returns the traces to measure on, by the kinds of their texts."""
        texts = self.settings["texts"]
        return {kind: self.find_trace(text, "measured") for kind, text in texts.items()}

    def list_tuning_traces(self) -> list[Path]:
        texts = self.settings["tuning"]["texts"]
        return [self.find_trace(text, "tuning") for text in texts.values()]

    def capture(self) -> None:
        """Captures the traces that do not exist yet."""
        tuning = self.settings["tuning"]
        uses = [("tuning", tuning["texts"], tuning["layers"])]
        uses.append(("measured", self.settings["texts"], self.settings["layers"]))
        self.work.mkdir(parents=True, exist_ok=True)
        for use, texts, layers in uses:
            for text in texts.values():
                trace = self.find_trace(text, use)
                if not trace.exists():
                    model = ["--model", ROOT / self.settings["model"], "--text", ROOT / text]
                    tokens = ["--tokens", self.settings["tokens"], "--layers", layers]
                    self.call("capture", *model, *tokens, "-o", trace)

    def find_folder(self, method: Path) -> Path:
        return self.work / method.stem

    def tune(self, method: Path) -> None:
        """Chooses the settings of a method for each density."""
        folder = self.find_folder(method)
        report = folder / "tune.json"
        folder.mkdir(parents=True, exist_ok=True)
        grid = self.make_grid(method)
        if is_current(report, grid):
            return
        if report.exists():
            # An input has changed: nothing that was measured with the old one remains.
            for path in folder.glob("*.json*"):
                path.unlink()
        shutil.rmtree(folder / "pipelines", ignore_errors=True)
        tuning = self.settings["tuning"]
        densities = ",".join(map(page.key, self.settings["densities"]))
        self.call(
            "tune", grid, "--trace", *self.list_tuning_traces(), "--layers", tuning["layers"],
            "--queries", tuning["queries"], "--rungs", tuning["rungs"],
            "--at", f"density={densities}", "--results", folder / "tune.jsonl",
            "--output", folder / "pipelines", "--json", report,
        )  # fmt: skip

    def make_grid(self, method: Path) -> Path:
        """Returns the grid file of a method; a pipeline is a grid that varies nothing."""
        grid = self.find_folder(method) / "grid.toml"
        if "base" in read_toml(method):
            return method
        base = json.dumps(str(method.resolve()))
        text = f"base = {base}\nsearch = true\n\n[grid]\nselectors.append = [[]]\n"
        if not grid.exists() or grid.read_text() != text:
            write(grid, text)
        return grid

    def list_pipelines(self, method: Path) -> dict[str, Path]:
        """Returns the chosen pipelines by density."""
        found = {}
        for density in map(page.key, self.settings["densities"]):
            for path in self.find_folder(method).glob(f"pipelines/*density-{density}.toml"):
                found[density] = path
        return found

    def compare(self, method: Path) -> None:
        """Measures the chosen pipelines of a method on each text."""
        pipelines = self.list_pipelines(method).values()
        options = ["--layers", self.settings["layers"], "--queries", self.settings["queries"]]
        for kind, trace in self.list_traces().items():
            report = self.find_folder(method) / f"compare-{kind}.json"
            if pipelines and not is_current(report):
                self.call("compare", *pipelines, "--trace", trace, *options, "--json", report)

            if is_current(report):
                self.adjust(method, kind, trace, options)

    def adjust(self, method: Path, kind: str, trace: Path, options: list) -> None:
        """Searches for the requested densities on a text, where the chosen pipelines miss them."""
        folder = self.find_folder(method)
        compared = read_json(folder / f"compare-{kind}.json")
        for density, pipeline in self.list_pipelines(method).items():
            result = find_result(compared, read_toml(pipeline)["name"])
            report = folder / f"adjusted-{kind}-{density}.json"
            if result is None or is_near(result, density) or is_current(report):
                continue
            search = ["--density", density, "--trace", trace, *options, "--json", report]
            try:
                self.call("compare", pipeline, *search)
            except Failed as error:
                # The pipeline has no setting to search; the report prevents another attempt.
                inputs = {
                    str(path): digest(str(path), path.stat().st_mtime_ns)
                    for path in (pipeline, trace)
                }
                report_failure = {"run": {"inputs": inputs}, "pipelines": [], "error": str(error)}
                write(report, json.dumps(report_failure))

    def measure_speed(self, method: Path) -> None:
        """Measures the time of a decode step on the heads of the first text."""
        pipelines = self.list_pipelines(method).values()
        report = self.find_folder(method) / "speed.json"
        if not pipelines or is_current(report):
            return
        speed = self.settings["speed"]
        trace = next(iter(self.list_traces().values()))
        self.call(
            "bench", *pipelines, "--trace", trace, "--tokens", speed["tokens"],
            "--threads", speed["threads"], "--dtype", speed["dtype"],
            "--cold-bytes", speed["cold_bytes"], "--seconds", speed["seconds"], "--json", report,
        )  # fmt: skip

    def evaluate(self, methods: list[Path]) -> None:
        """Measures the answers of the model, with all methods together.

        The context of a case is then read once. Answers are stored with digests of all that they
        depend on, so that further methods need no answer twice.
        """
        ruler = self.settings["ruler"]
        pipelines = []
        for method in methods:
            chosen = self.list_pipelines(method)
            densities = map(page.key, ruler["densities"])
            pipelines += [chosen[density] for density in densities if density in chosen]
        if not pipelines or not ruler["tasks"]:
            return
        name = "-".join(map(str, self.shard)) + "-" + digest_names(methods)
        report = self.work / f"ruler/{name}.json"
        if is_current(report):
            return
        report.parent.mkdir(parents=True, exist_ok=True)
        answers = report.parent / f"answers-{self.shard[0]}-{self.shard[1]}.jsonl"
        self.call(
            "evaluate", "--pipelines", "dense", *pipelines,
            "--model", ROOT / self.settings["model"], "--dtype", ruler["dtype"],
            "--tasks", ",".join(ruler["tasks"]), "--context", ruler["context"],
            "--cases", ruler["cases"], "--haystack", ROOT / ruler["haystack"], "--no-errors",
            "--at-once", os.cpu_count(), "--leave-out-below", "0.2", "--results", answers,
            "--json", report,
        )  # fmt: skip

    # Rows.

    def make_row(self, method: Path) -> dict:
        """Collects the results of a method in a row; parts that were not measured are missing."""
        folder = self.find_folder(method)
        tuned = read_json(folder / "tune.json")
        names = {
            density: read_toml(path)["name"]
            for density, path in self.list_pipelines(method).items()
        }
        reports = {
            kind: read_json(folder / f"compare-{kind}.json")
            for kind in self.settings["texts"]
            if is_current(folder / f"compare-{kind}.json")
        }
        times = self.read_times(method)
        scores = self.read_scores()
        cells, missing = {}, {}
        for best in tuned["best"]:
            density = best["goal"].removeprefix("density=")
            if density not in names:
                missing[density] = explain_missing(tuned, best)
                continue
            results = {}
            for kind, report in reports.items():
                result = find_result(report, names[density])
                results[kind] = self.replace_adjusted(method, kind, density, result)
            if results:
                cell = make_cell(results)
                cell["scans"] = scans_keys(self.list_pipelines(method)[density])
                cell["settings"] = describe_settings(tuned["tried"][best["tried"]])
                cell["time"] = times.get(names[density])
                cell["ruler"] = scores.get(names[density])
                cells[density] = cell
        for density in map(page.key, self.settings["densities"]):
            if density not in cells and density not in missing:
                missing[density] = explain_left_out(tuned)
        machine = tuned["run"]["machine"]
        return {
            "method": tuned["best"][0]["pipeline"] if tuned["best"] else method.stem,
            "stem": method.stem,
            "file": name_file(method),
            "board": identify(self.settings),
            "vattention": tuned["run"]["vattention"],
            "machine": f"{machine['cpu'] or machine['arch']} ({machine['cores']} threads)",
            "cells": cells,
            "missing": missing,
        }

    def replace_adjusted(
        self, method: Path, kind: str, density: str, result: dict | None
    ) -> dict | None:
        """Returns the result after another search, if its density is nearer to that requested."""
        report = self.find_folder(method) / f"adjusted-{kind}-{density}.json"
        if result is None or is_near(result, density) or not is_current(report):
            return result
        found = [result, *read_json(report)["pipelines"]]
        return min(found, key=lambda one: abs(math.log(one["density"] / float(density))))

    def record(self, method: Path, board: Path) -> None:
        """Writes the row of a method to the board."""
        write_row(board, self.make_row(method))

    def read_times(self, method: Path) -> dict[str, dict]:
        """Returns the times of pipelines by name, relative to dense attention."""
        report = self.find_folder(method) / "speed.json"
        rows = read_json(report)["rows"] if is_current(report) else []
        return {
            row["pipeline"]: {
                "relative": round_number(1 / row["speedup_over_dense"]),
                "read": round_number(row["density"]),
            }
            for row in rows
        }

    def read_scores(self) -> dict[str, dict]:
        """Returns the scores of RULER by pipeline, with their differences to dense attention."""
        scores = {}
        for report in sorted((self.work / "ruler").glob("*.json"), key=os.path.getmtime):
            if not is_current(report):
                continue
            variants = read_json(report)["variants"]
            dense = next((one["accuracy"] for one in variants if one["variant"] == "dense"), None)
            for variant in variants:
                if dense is None or not variant["to_dense"]:
                    continue
                difference = variant["to_dense"][0]
                scores[variant["pipeline"]] = {
                    "score": round_number(variant["accuracy"]),
                    "read": variant["density"] and round_number(variant["density"]),
                    "dense": round_number(dense),
                    "difference": round_number(difference["mean"]),
                    "low": round_number(difference["low"]),
                    "high": round_number(difference["high"]),
                    "cases": difference["cases"],
                }
        return scores


def digest_names(methods: list[Path]) -> str:
    names = "\n".join(method.stem for method in methods)
    return hashlib.sha256(names.encode()).hexdigest()[:8]


def is_near(result: dict, density: str) -> bool:
    """Returns True if a pipeline reads the requested share."""
    return abs(result["density"] / float(density) - 1) <= NEAR


def find_result(report: dict, name: str) -> dict | None:
    """Returns the result of a pipeline on a text."""
    return next((result for result in report["pipelines"] if result["pipeline"] == name), None)


def make_cell(results: dict[str, dict | None]) -> dict:
    """Summarizes the results of a pipeline on each text."""
    results = {kind: result for kind, result in results.items() if result}
    texts = {
        kind: {
            "error": round_number(result["output_error"]["mean"]),
            "read": round_number(result["density"]),
            "index": round_number(result["index_bytes_per_token"]),
        }
        for kind, result in results.items()
    }
    guarantees = [result["guarantee"] for result in results.values() if result["guarantee"]]
    promise = None
    if guarantees:
        promised = guarantees[0]["promise"]
        epsilons = [guarantee["promise"]["epsilon"] for guarantee in guarantees]
        promise = {
            "epsilon": [round_number(min(epsilons)), round_number(max(epsilons))],
            "delta": promised["delta"],
            "kind": guarantees[0]["kind"],
        }
    counts = [guarantee["violations"] for guarantee in guarantees]
    return {
        "texts": texts,
        "promise": promise,
        "violations": [
            sum(one["violated"] for one in counts),
            sum(one["checked"] for one in counts),
        ],
    }


def round_number(number: float) -> float:
    """Rounds to five digits, which keeps the files of rows small."""
    return float(f"{number:.5g}")


def scans_keys(pipeline: Path) -> bool:
    """Returns True if a selector computes the scores of all keys exactly."""
    return 'type = "oracle-' in pipeline.read_text()


def describe_settings(tried: dict) -> str:
    """Describes the settings that a search chose."""
    parts = [f"{key} = {value}" for key, value in tried["settings"] if key != "selectors.append"]
    return ", ".join(parts + ([tried["set"]] if tried["set"] else []))


def explain_missing(tuned: dict, best: dict) -> str:
    """Explains why no setting was chosen for a density."""
    if best["nearest"] is None:
        return "no setting could be measured"
    read = tuned["tried"][best["nearest"]]["score"]["density"]
    return f"no setting reads so little; the nearest reads {page.percent(read)}"


def explain_left_out(tuned: dict) -> str:
    reasons = [candidate["reason"].splitlines()[0] for candidate in tuned["left_out"]]
    return reasons[0] if reasons else "not measured"


# The board.


def read_rows(board: Path, settings: dict) -> list[dict]:
    """Reads the rows that were measured with the settings of the board."""
    rows = []
    for path in sorted(board.glob("rows/*.json")):
        row = read_json(path)
        if row["board"] == identify(settings):
            rows.append(row)
        else:
            print(f"left out: {path}: measured with other settings; run {row['file']} again")
    return rows


def write_row(board: Path, row: dict) -> None:
    path = board / f"rows/{row['stem']}.json"
    if path.exists() and (other := read_json(path)["file"]) != row["file"]:
        raise Failed(f"{path} is the row of {other}; expected another name than {row['file']}")
    write(path, json.dumps(row, indent=1, ensure_ascii=False) + "\n")


def make_page(board: Path, settings: dict, document: Path | None) -> None:
    """Writes the page, and replaces the tables of a document."""
    rows = read_rows(board, settings)
    if not rows:
        raise Failed(f"{board}/rows: found no row of these settings; expected at least one")
    write(board / "index.html", page.make_page(rows, settings))
    print(f"{board / 'index.html'}: {page.count(len(rows), 'row')}")
    if document:
        text = document.read_text()
        before, start, rest = text.partition(MARKS[0])
        _, end, after = rest.partition(MARKS[1])
        if not (start and end):
            raise Failed(
                f"{document}: expected the lines {MARKS[0].strip()} and {MARKS[1].strip()}"
            )
        write(
            document,
            before + start + "\n" + page.make_markdown(rows, settings) + "\n" + end + after,
        )


def measure(runner: Runner, methods: list[Path], steps: list[str], board: Path) -> None:
    """Runs the steps for each method, and writes the rows."""
    if "trace" in steps:
        runner.capture()
    chosen = {"tune": runner.tune, "compare": runner.compare, "speed": runner.measure_speed}
    for number, method in enumerate(methods, 1):
        print(f"{method.stem}, {number} of {len(methods)}", flush=True)
        for name, step in chosen.items():
            if name in steps:
                runner.attempt(method.stem, step, method)
    if "ruler" in steps:
        runner.attempt("ruler", runner.evaluate, methods)
    for method in methods:
        if (runner.find_folder(method) / "tune.json").exists():
            runner.attempt(method.stem, runner.record, method, board)


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument(
        "methods", nargs="*", metavar="METHOD",
        help="pipeline or grid file, or a folder; by default, the methods of settings.toml",
    )  # fmt: skip
    parser.add_argument(
        "--board", type=Path, default=BOARD, metavar="DIR", help="folder of the leaderboard"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "target/leaderboard", metavar="DIR",
        help="folder of all outputs, from which an interrupted run continues",
    )  # fmt: skip
    parser.add_argument(
        "--vattention", type=Path, default=ROOT / "target/release/vattention", metavar="COMMAND",
        help="the command, or that of a crate with plug-ins",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=parse_steps, default=STEPS, metavar="STEPS",
        help="steps to run, separated by commas; by default, all",
    )  # fmt: skip
    parser.add_argument(
        "--shard", type=parse_shard, default=(1, 1), metavar="I/N",
        help="measure every Nth method, from the Ith; makes no page",
    )  # fmt: skip
    args = parser.parse_args()
    try:
        settings = read_settings(args.board)
        named = [args.methods, Path.cwd()] if args.methods else [settings["methods"], ROOT]
        runner = Runner(settings, args.work.resolve(), args.vattention, args.shard)
        if set(args.steps) - {"page"}:
            methods = list_methods(*named)[args.shard[0] - 1 :: args.shard[1]]
            measure(runner, methods, args.steps, args.board)
        if "page" in args.steps and args.shard[1] == 1:
            document = METHODS if args.board.resolve() == BOARD else None
            make_page(args.board, settings, document)
    except Failed as error:
        print(f"leaderboard: {error}", file=sys.stderr)
        return 2
    return 1 if runner.failures else 0


if __name__ == "__main__":
    sys.exit(main())
