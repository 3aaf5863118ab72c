"""Command line of the scripts that print golden cases of methods."""

import json
import sys


def main(script, methods):
    """Prints the cases of the method that the command line names, one per line.

    `methods` are functions by name, each of which returns a list of cases. Returns the exit code.
    """
    if len(sys.argv) != 2 or sys.argv[1] not in methods:
        print(f"{script}: expected one of {', '.join(methods)}", file=sys.stderr)
        return 2
    cases = methods[sys.argv[1]]()
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
    return 0
