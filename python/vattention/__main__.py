"""`python -m vattention`: the `vattention` command."""

from vattention._command import main

main()
