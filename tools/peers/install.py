"""Installation of the peers: an environment with torch, and ggml of llama.cpp as a shared library.

This module needs the standard library alone, because it runs before packages are installed.
"""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-peers"
GGML_LIBRARY = VENV / "ggml" / "build" / "libggml_decode.so"
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
MANIFEST = ROOT / "benches" / "peers" / "Cargo.toml"
OURS_TARGET = ROOT / "target" / "peers"
OURS_LIBRARY = OURS_TARGET / "release" / "libvattention_peers.so"
HOW = "python3 tools/bench_peers.py --install"


class Failed(Exception):
    """Error of a step, whose message names the step and its cause."""


def run(step: str, *command: str | Path) -> None:
    """Runs the command of a step, and shows its output."""
    print(f"\n== {step}", file=sys.stderr, flush=True)
    environment = {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    try:
        subprocess.run([str(part) for part in command], check=True, env=environment)
    except FileNotFoundError:
        raise Failed(f"{step}: `{command[0]}` is not installed")
    except subprocess.CalledProcessError as error:
        raise Failed(f"{step}: `{command[0]}` failed with status {error.returncode}")


def install(jobs: int) -> None:
    """Runs all steps; the tools of the steps skip work that is already done."""
    install_packages()
    install_ggml(jobs)
    build_ours()


def install_packages() -> None:
    run("virtual environment", sys.executable, "-m", "venv", VENV)
    requirements = Path(__file__).with_name("requirements.txt")
    run("packages", VENV / "bin" / "pip", "install", "--quiet", "-r", requirements)


def install_ggml(jobs: int) -> None:
    """Builds the ggml in the source of the package, with the wrapper peers/ggml_decode.c."""
    folder = VENV / "ggml"
    source = folder / f"{PACKAGE.replace('-', '_')}-{VERSION}" / "vendor" / "llama.cpp" / "ggml"
    if not source.is_dir():
        options = ["--quiet", "--no-deps", "--no-binary", PACKAGE, "-d", folder]
        run(
            "source of llama.cpp",
            VENV / "bin" / "pip",
            "download",
            *options,
            f"{PACKAGE}=={VERSION}",
        )
        unpack(folder)
    build = GGML_LIBRARY.parent
    options = ["-G", "Ninja", "-S", Path(__file__).parent, "-B", build, f"-DGGML_SOURCE={source}"]
    run("configure ggml", VENV / "bin" / "cmake", *options)
    run(
        "build ggml",
        VENV / "bin" / "cmake",
        "--build",
        build,
        "--target",
        "ggml_decode",
        "-j",
        str(jobs),
    )


def unpack(folder: Path) -> None:
    archives = list(folder.glob(f"*{VERSION}.tar.gz"))
    if len(archives) != 1:
        raise Failed(f"source of llama.cpp: expected one archive of version {VERSION} in {folder}")
    with tarfile.open(archives[0]) as archive:
        parts = [
            member for member in archive.getmembers() if "/vendor/llama.cpp/ggml/" in member.name
        ]
        archive.extractall(folder, parts, filter="data")
    archives[0].unlink()


def build_ours() -> None:
    """Builds this library with its C interface."""
    options = ["--release", "--quiet", "--manifest-path", MANIFEST, "--target-dir", OURS_TARGET]
    run("build vattention", "cargo", "build", *options)
