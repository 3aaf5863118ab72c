"""The table of `just real verify`: what `vattention verify --json` counted of each pipeline."""

import json
import sys


def row(report):
    heads, worst, worst_row = report["heads"], report["worst"], report["worst_row"]
    read = sum(head["density"] for head in heads) / len(heads)
    return (
        report["pipeline"],
        f"{read:.1%}",
        f"{max(head['density'] for head in heads):.1%}",
        f"{report['violations'] / report['trials']:.2%}",
        f"{worst['violations'] / worst['trials']:.1%}",
        f"{worst_row['violations']} of {worst_row['trials']}",
        "held" if report["held"] else "broken",
    )


HEADER = ("pipeline", "read", "most", "broken", "worst head", "worst row", "verdict")
rows = [HEADER, *map(row, [json.load(open(path)) for path in sys.argv[1:]])]
widths = [max(len(cells[i]) for cells in rows) for i in range(len(HEADER))]
for cells in rows:
    print(cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])), sep="  ")
print()
print("read, most  by a query head, share of the visible tokens: mean over heads, and the largest")
print("broken      share of the samples whose error exceeds epsilon; worst head: the same, of the head with most")
