"""Command line of `python -m vattention.ray COMMAND ...`: its options and exit code."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from vattention.ray._connect import Cluster, Unreachable
from vattention.ray._driver import Failed, Plan, run
from vattention.ray._results import Refused, Results

WRONG, INTERRUPTED = 2, 130

COMMANDS = ("evaluate", "compare", "study", "tune", "verify")

# Options of these commands that are refused here, with the reason.
REFUSED = {
    "--shard": "shards are made here; set their number with --shards",
    "--dump": "it needs more results than the shards compute here; see `vattention merge`",
}

DESCRIPTION = """\
Runs a command of vattention on a Ray cluster, as tasks that each compute one shard of its results.
Give the command and its options as to `vattention`, and the options below in addition. The results
equal those of a single process.
"""

EPILOG = """\
Every node must have the input files under the same paths. Exit codes: 0 success; 1 `verify` found
the promise contradicted; 2 error, printed with its node; 3 `verify` is undecided; 130 interrupted.
Results are stored in --results as tasks end; run an interrupted command again to continue.
"""


def _parse_count(text: str) -> int:
    """Parses a whole number, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return number


def _parse_amount(text: str) -> float:
    """Parses a number of seconds or GiB, between 0 and a million."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1e6, got {text!r}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vattention.ray",
        usage="%(prog)s {" + ",".join(COMMANDS) + "} ... --results FILE [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--results",
        type=Path,
        required=True,
        metavar="FILE",
        help="store results in this file as tasks end, and continue from it",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the results, as SVG")
    parser.add_argument(
        "--output",
        "-o",
        metavar="FOLDER",
        help="write the best pipelines of tune as files in this folder",
    )
    parser.add_argument(
        "--address",
        default="auto",
        help="host:port of the cluster's head; auto takes RAY_ADDRESS, or the cluster of this "
        "machine (auto)",
    )
    parser.add_argument(
        "--shards",
        type=_parse_count,
        metavar="N",
        help="number of tasks (4 for each that can run at the same time)",
    )
    parser.add_argument(
        "--cpus-per-task",
        type=_parse_count,
        default=1,
        metavar="N",
        help="cores and threads per task (1)",
    )
    parser.add_argument(
        "--memory-per-task",
        type=_parse_amount,
        metavar="GIB",
        help="memory to reserve for each task (none)",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=3,
        metavar="N",
        help="number of times to repeat a task whose node or process died (3)",
    )
    parser.add_argument(
        "--wait",
        type=_parse_amount,
        default=60.0,
        metavar="SECONDS",
        help="time to wait for the cluster, and for a node that can run a task (60)",
    )
    return parser


def main(args: list[str]) -> int:
    """Runs the command line, without the program's name, and returns the exit code."""
    parser = _parser()
    options, command = parser.parse_known_args(args)
    if not command or command[0] not in COMMANDS:
        parser.error(f"expected a command first: {', '.join(COMMANDS)}")
    for word in command:
        option = word.partition("=")[0]
        if option in REFUSED:
            parser.error(f"{option}: {REFUSED[option]}")
    if command[0] == "verify" and options.plot:
        parser.error(f"--plot of verify: {REFUSED['--dump']}")
    if command[0] != "tune" and options.output:
        parser.error(f"--output of {command[0]}: only tune has this option")
    plan = Plan(
        command=command,
        outputs=[
            word
            for name in ("json", "plot", "output")
            if (path := getattr(options, name))
            for word in (f"--{name}", path)
        ],
        shards=options.shards,
        cpus=options.cpus_per_task,
        memory=options.memory_per_task and int(options.memory_per_task * 2**30),
        retries=options.retries,
        wait=options.wait,
    )
    try:
        with Results(options.results) as results:
            try:
                return run(plan, results, lambda: Cluster(options.address, options.wait), _say)
            finally:
                _say(f"{options.results}: {results.count} results")
    except (Unreachable, Failed, Refused, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("interrupted; run again to continue", file=sys.stderr)
        return INTERRUPTED


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _main() -> NoReturn:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    _main()
