"""Prints the table of `just real mixed`: the promise in each row of a trace of mixed text.

    python3 real/mixed.py VATTENTION TRACE PIPELINE FOLDER

Each query of the trace becomes a separate trace, so that `verify` counts every row by itself. Rows
whose violations exceed delta, and rows with the smallest p-values, are suspected. A suspected row
is tested again with new samples and the same seed, because the promise is conditional on the random
choices that the seed fixes. Reports stay in FOLDER, and an interrupted run continues from them.
"""

import json
import math
import os
import struct
import subprocess
import sys

import table

SCREENING = 200  # Samples per row.
RETEST = 1000  # New samples per suspected row.
LEAST_SUSPECTED = 10
LEVEL = 1e-6


class Trace:
    """Trace file, whose queries can be written as separate traces."""

    def __init__(self, path):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            self.data = file.read()
        self.metadata = header.pop("__metadata__", {})
        self.tensors = header

    def queries(self):
        """Returns the number of queries per head."""
        return next(t["shape"][1] for name, t in self.tensors.items() if name.endswith(".queries"))

    def write_query(self, path, query, layer=None):
        """Writes a trace with one query of every head, of all layers or of one layer."""
        header, parts, end = {"__metadata__": self.metadata}, [], 0
        for name, tensor in self.tensors.items():
            _, number, part = name.split(".")
            if layer is not None and int(number) != layer:
                continue
            begin, stop = tensor["data_offsets"]
            data, shape = self.data[begin:stop], list(tensor["shape"])
            if part == "queries":
                data, shape[1] = take_query(data, *shape[:2], query), 1
            elif part == "visible":
                data, shape = take_query(data, 1, shape[0], query), [1]
            offsets = [end, end + len(data)]
            header[name] = {"dtype": tensor["dtype"], "shape": shape, "data_offsets": offsets}
            end += len(data)
            parts.append(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def take_query(data, heads, queries, query):
    """Returns the bytes of one query of each head."""
    row = len(data) // (heads * queries)
    starts = [(head * queries + query) * row for head in range(heads)]
    return b"".join(data[start : start + row] for start in starts)


class Study:
    """Runs of `verify` on single queries of one trace."""

    def __init__(self, vattention, trace, pipeline, folder):
        self.vattention, self.pipeline, self.folder = vattention, pipeline, folder
        self.trace = Trace(trace)

    def verify(self, name, share, trials, query, layer=None):
        """Returns the report on one query, from the file of an earlier run if there is one."""
        report = os.path.join(self.folder, f"{name}.json")
        if not os.path.exists(report):
            part = os.path.join(self.folder, "query.safetensors")
            self.trace.write_query(part, query, layer)
            command = [self.vattention, "verify", self.pipeline, "--trace", part]
            command += ["--trials", str(trials), "--set", f'share="{share}"']
            command += ["--json", report + ".part"]
            done = subprocess.run(command, capture_output=True, text=True)
            # Exit codes 1 and 3 are verdicts, not errors.
            if done.returncode not in (0, 1, 3):
                sys.exit(done.stderr)
            os.rename(report + ".part", report)
        with open(report) as file:
            return json.load(file)

    def screen(self, share):
        """Tests every row, and returns them with their violations."""
        rows = []
        for query in range(self.trace.queries()):
            report = self.verify(f"screen-{share}-{query}", share, SCREENING, query)
            rows += [Row(query, head) for head in report["heads"]]
            print(f"{share}: query {query + 1} of {self.trace.queries()}", file=sys.stderr)
        self.delta = report["goal"]["delta"]
        return rows

    def retest(self, share, row):
        """Returns the violations among new samples of a row, without those of the screening."""
        name = f"retest-{share}-{row.query}-{row.layer}"
        report = self.verify(name, share, SCREENING + RETEST, row.query, row.layer)
        head = next(h for h in report["heads"] if h["query_head"] == row.head)
        return head["violated"] - row.violations


class Row:
    """Row: a query head at one query."""

    def __init__(self, query, head):
        self.query, self.layer, self.head = query, head["layer"], head["query_head"]
        self.violations, self.p_value = head["violated"], head["p_value"]
        self.read = head["density"]


def p_value(violations, trials, delta):
    """Returns the binomial probability of at least this number of violations at a rate of delta."""

    def term(k):
        log_ways = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return math.exp(log_ways + k * math.log(delta) + (trials - k) * math.log1p(-delta))

    return min(1.0, sum(map(term, range(violations, trials + 1))))


def find_suspects(rows, delta):
    """Returns the rows with the smallest p-values, at least those whose rate exceeds delta."""
    by_p_value = sorted(rows, key=lambda row: (row.p_value, -row.violations))
    above = sum(row.violations > delta * SCREENING for row in rows)
    return by_p_value[: max(above, LEAST_SUSPECTED)]


def summarise(share, rows, counts, delta):
    """Returns the table's line of one share mode."""
    worst = max(counts, key=lambda pair: pair[1])
    p = p_value(worst[1], RETEST, delta)
    violations = sum(row.violations for row in rows)
    return (
        f'share = "{share}"',
        str(len(rows)),
        f"{sum(row.read for row in rows) / len(rows):.1%}",
        f"{violations / (len(rows) * SCREENING):.2%}",
        f"{max(row.violations for row in rows)} of {SCREENING}",
        f"{worst[1]} of {RETEST}",
        "contradicted" if p < LEVEL / len(rows) else "held",
    )


def main():
    study = Study(*sys.argv[1:])
    summary = [("mode", "rows", "read", "violated", "worst row", "retested", "verdict")]
    details = [("share", "layer", "query head", "query", "screening", "retest", "p-value")]
    for share in ("head", "group"):
        rows = study.screen(share)
        suspects = find_suspects(rows, study.delta)
        counts = [(row, study.retest(share, row)) for row in suspects]
        summary.append(summarise(share, rows, counts, study.delta))
        for row, again in counts:
            place = (str(row.layer), str(row.head), str(row.query))
            tests = (f"{row.violations} of {SCREENING}", f"{again} of {RETEST}")
            p = f"{p_value(again, RETEST, study.delta):.1e}"
            details.append((share, *place, *tests, p))
    table.show(summary)
    print()
    table.show(details)
    print()
    print("read       share of the visible tokens, mean over rows")
    print("violated   share of the samples whose error exceeds epsilon")
    print("worst row  largest number of violations of a row; retested: the same in new samples")


main()
