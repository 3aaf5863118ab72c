"""Tables of reports that commands wrote as JSON."""

import json
import sys


def reports():
    """Of the files that the command line names."""
    return [json.load(open(path)) for path in sys.argv[1:]]


def show(rows):
    """Prints rows of texts; the first column stands at the left, numbers at the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *numbers in rows:
        print(first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:]), sep="  ")
