"""Prints the table of `just real verify` from the reports of `vattention verify --json`."""

import table


def row(report):
    heads, worst, worst_row = report["heads"], report["worst"], report["worst_row"]
    read = [head["density"] for head in heads]
    return (
        report["pipeline"],
        f"{sum(read) / len(read):.1%}",
        f"{max(read):.1%}",
        f"{report['violations']['violated'] / report['violations']['checked']:.2%}",
        f"{worst['violated'] / worst['checked']:.1%}",
        f"{worst_row['violated']} of {worst_row['checked']}",
        report["verdict"],
    )


header = ("pipeline", "read", "most", "violated", "worst head", "worst row", "verdict")
table.show([header, *map(row, table.reports())])
print()
print("read, most  share of the visible tokens that a query head reads: mean and largest of heads")
print("violated    share of the samples whose error exceeds epsilon; worst head: the largest share")
