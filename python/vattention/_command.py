"""The `vattention` command: the Rust program, run by Python's."""

import signal
import sys
from typing import NoReturn

from vattention._vattention import run_command


def main() -> NoReturn:
    """Runs the command that the process was called with, and ends the process with its exit code."""
    # Python would keep Ctrl-C for code of its own, which runs when the command has ended. Where the shell ignores it, so does the command.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run_command(["vattention", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
