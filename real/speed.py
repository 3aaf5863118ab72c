"""Prints the table of `just real speed` from the reports of `vattention generate --json`."""

import table


def milliseconds(report):
    """Returns the milliseconds of a token, and of its attention."""
    steps = report["steps"]
    token = 1000 * steps["median_seconds"]
    return token, token * steps["attention_share"]


def row(report, dense):
    token, attention = milliseconds(report)
    of_dense = attention / milliseconds(dense)[1]
    return (
        report["pipeline"],
        f"{report['density']:.1%}",
        f"{token:.1f}",
        f"{attention:.1f}",
        f"{of_dense:.2f}",
    )


reports = sorted(table.reports(), key=lambda report: milliseconds(report)[1])
dense = next(report for report in reports if report["pipeline"] == "dense")
context, count = dense["tokens"]["context"], dense["steps"]["count"]
print(f"context of {context} tokens; medians of {count} tokens, in ms")
table.show(
    [
        ("pipeline", "read", "token", "attention", "of dense"),
        *(row(report, dense) for report in reports),
    ]
)
