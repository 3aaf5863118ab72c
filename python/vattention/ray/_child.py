"""The command, in a process that ends with the one that started it, of which it holds the other end of standard input."""

import os
import sys
import threading
from typing import NoReturn

from vattention._vattention import run_command


def _end_with_parent() -> None:
    # Not by `sys.stdin`, whose lock may not be held when the interpreter ends.
    os.read(0, 1)
    os._exit(130)


def main() -> NoReturn:
    """Runs the command that the process was called with."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(run_command(["vattention", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
