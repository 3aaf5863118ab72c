"""Prints the table of tuned methods in docs/methods.md from the JSON files of `vattention tune`.

    python3 real/best.py target/real/tune.json

The table has the error and the density of the best settings on the held-out texts, for each method
and target density, sorted by error. Exit codes: 0 success, 2 invalid file.
"""

import json
import sys
from pathlib import Path


def cell(best):
    """Formats error and density on the held-out texts; a dash if no candidate has a result."""
    held_out = best and best["held_out"]
    return f"{held_out['error']:.4f} ({100 * held_out['density']:.1f} %)" if held_out else "-"


def settings(found, best):
    """Formats the chosen settings, with shortened keys."""
    if not best or best["tried"] is None:
        return "-"
    tried = found["tried"][best["tried"]]
    return ", ".join(
        f"`{key.removeprefix('selectors.')} = {value}`" for key, value in tried["settings"]
    )


def rows(found):
    """Yields a sort key and a row of the table for each method."""
    goals = ["density=0.05", "density=0.1", "density=0.2"]
    for method in dict.fromkeys(best["pipeline"] for best in found["best"]):
        bests = {best["goal"]: best for best in found["best"] if best["pipeline"] == method}
        errors = [best["held_out"]["error"] for best in bests.values() if best["held_out"]]
        cells = (
            [method]
            + [cell(bests.get(goal)) for goal in goals]
            + [settings(found, bests.get(goals[1]))]
        )
        at_tenth = bests.get(goals[1])
        held_out = at_tenth and at_tenth["held_out"]
        yield (
            (held_out["error"] if held_out else float("inf"), min(errors, default=float("inf"))),
            cells,
        )


def main():
    try:
        files = [json.loads(Path(path).read_text()) for path in sys.argv[1:]]
        tables = [sorted(rows(found), key=lambda row: row[0]) for found in files]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"best: {error!r}; expected files of `vattention tune --json`", file=sys.stderr)
        return 2
    for found, table in zip(files, tables):
        tuned, measured = ", ".join(found["traces"]), ", ".join(found["held_out"])
        print(f"\nTuned on {tuned}, measured on {measured}:\n")
        print("| method | error (read) at 5 % | 10 % | 20 % | settings at 10 % |")
        print("|---|--:|--:|--:|---|")
        for _, cells in table:
            print("| " + " | ".join(cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
