"""Functions for tables of reports that commands wrote as JSON."""

import json
import sys


def reports():
    """Reads the files of the command line."""
    return [json.load(open(path)) for path in sys.argv[1:]]


def show(rows):
    """Prints rows of strings; the first column is aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *numbers in rows:
        print(first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:]), sep="  ")
