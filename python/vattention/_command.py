"""The `vattention` command: a Python entry point that runs the Rust program."""

import signal
import sys
from typing import NoReturn

from vattention._vattention import run_command


def main() -> NoReturn:
    """Runs the command of `sys.argv` and exits with its exit code."""
    # Python's own handler of Ctrl-C would run only after the command has ended. If the shell set
    # the signal to be ignored, the command ignores it, too.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(run_command(["vattention", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
