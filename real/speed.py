"""The table of `just real speed`: what `vattention generate --json` measured of each pipeline, beside `dense`."""

import json
import sys

reports = [json.load(open(path)) for path in sys.argv[1:]]
dense = next(report for report in reports if report["pipeline"] == "dense")


def milliseconds(report):
    """Of a token, and of its attention."""
    steps = report["steps"]
    token = 1000 * steps["median_seconds"]
    return token, token * steps["attention_share"]


print(f"{dense['tokens']['context']} tokens before; medians of {dense['steps']['count']} tokens, in ms")
print(f"{'pipeline':34} {'read':>7} {'token':>7} {'attention':>10} {'of dense':>9}")
for report in sorted(reports, key=lambda report: milliseconds(report)[1]):
    token, attention = milliseconds(report)
    of_dense = attention / milliseconds(dense)[1]
    print(f"{report['pipeline']:34} {report['density']:7.1%} {token:7.1f} {attention:10.1f} {of_dense:9.2f}")
