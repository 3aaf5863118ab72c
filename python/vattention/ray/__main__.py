"""`python -m vattention.ray COMMAND ...`: the options, and the exit code."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from vattention.ray._connect import Cluster, Unreachable
from vattention.ray._driver import Failed, Plan, run
from vattention.ray._results import Refused, Results

WRONG, INTERRUPTED = 2, 130

COMMANDS = ("evaluate", "compare", "study", "tune", "verify")

# Options of these commands that cannot be had here, and why.
REFUSED = {
    "--shard": "the shares are made here, as many as --shards",
    "--dump": "it needs more than the shards compute here; see `vattention merge`",
}

DESCRIPTION = """\
Runs a command of vattention over a Ray cluster, as tasks that each compute a share of its results. The command and its options
are those of `vattention`, which see; these are beside them. The results are those of one process.
"""

EPILOG = """\
What the command reads, it reads by the same path on each node. Exit codes: 0 fine, 1 the answer is no, 2 something is wrong, which
is told with its node; 3 `verify` is undecided; 130 interrupted. What had come is kept in --results: run again, the command goes on from there.
"""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError
    return seconds


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
        help="keep each result there as it comes",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the results, as SVG")
    parser.add_argument(
        "--output",
        "-o",
        metavar="FOLDER",
        help="write each of the best of tune as a pipeline file in this folder",
    )
    parser.add_argument(
        "--address",
        default="auto",
        help="host:port of the cluster's head, or auto: RAY_ADDRESS, or the cluster of this machine (auto)",
    )
    parser.add_argument(
        "--shards",
        type=_positive,
        metavar="N",
        help="tasks (4 for each that can run at the same time)",
    )
    parser.add_argument(
        "--cpus-per-task",
        type=_positive,
        default=1,
        metavar="N",
        help="cores, and threads, of a task (1)",
    )
    parser.add_argument(
        "--memory-per-task",
        type=_seconds,
        metavar="GIB",
        help="memory that a node must have for each of its tasks",
    )
    parser.add_argument(
        "--retries",
        type=int,
        default=3,
        metavar="N",
        help="how often a task is repeated whose node or process died (3)",
    )
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="for the cluster, and for a node that can run a task (60)",
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
        parser.error(f"--output of {command[0]}: only tune has it")
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
        print("interrupted; run again to go on", file=sys.stderr)
        return INTERRUPTED


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _main() -> NoReturn:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    _main()
