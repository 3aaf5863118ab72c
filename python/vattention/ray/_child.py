"""Process that runs the command and exits when its parent does.

The parent holds the other end of standard input, which is closed when the parent exits.
"""

import os
import sys
import threading
from typing import NoReturn

from vattention._vattention import run_command


def _end_with_parent() -> None:
    # A thread that reads `sys.stdin` holds its lock, which aborts the interpreter at exit.
    os.read(0, 1)
    os._exit(130)


def main() -> NoReturn:
    """Runs the command of `sys.argv` and exits with its exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(run_command(["vattention", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
