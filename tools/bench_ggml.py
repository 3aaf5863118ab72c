#!/usr/bin/env python3
"""Compare an attention node for ggml that calls this library with ggml's own attention.

    python3 tools/bench_ggml.py [--threads 2]

The node is crates/capi/examples/ggml/attention_node.c. ggml is built in .venv-serve from the source
that a PyPI package ships, unless it has been built already; that needs a C++ compiler and some
minutes. The program fails if a step of a small layer differs from ggml's, and prints the times of
both at 8K and 32K tokens.
"""

import argparse
import os
import sys
from pathlib import Path

from fetching import Failed
from serving.llama_server import ROOT, SOURCE, ggml_libraries, install, run

CAPI = ROOT / "crates" / "capi"
FOLDER = ROOT / "target" / "ggml-node"


def build_node() -> Path:
    """Builds the program with the installed library, and returns its path."""
    run("install vattention", CAPI / "install.sh", FOLDER)
    program, code = FOLDER / "attention_node", CAPI / "examples" / "ggml" / "attention_node.c"
    compiled, lib = FOLDER / "attention_node.o", FOLDER / "lib"
    headers = ["-I", FOLDER / "include", "-I", SOURCE / "ggml" / "include"]
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *headers]
    run("compile the node", "cc", *options, "-c", code, "-o", compiled)
    ours = ["-L", lib, "-lvattention_capi", f"-Wl,-rpath,{lib}"]
    system = ["-fopenmp", "-lpthread", "-ldl", "-lm"]
    run("link the node", "c++", compiled, *ours, *ggml_libraries(), *system, "-o", program)
    return program


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1, help="threads of ggml, for both")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilers")
    options = parser.parse_args()
    try:
        if not all(library.exists() for library in ggml_libraries()):
            # The library `ggml` depends on the others.
            install(options.jobs, "ggml")
        run("compare and measure", build_node(), str(options.threads))
    except Failed as error:
        print(f"bench_ggml.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
