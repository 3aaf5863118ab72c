#!/usr/bin/env python3
"""Make prose for haystacks and traces from Debian's packages, as UTF-8 text files in texts/.

    python3 tools/get_prose.py

The King James Bible is in the public domain. The package bible-kjv-text has it in its own format,
which the program of bible-kjv prints; this script turns it into running prose. Parts with the same
story (Samuel and Kings, Chronicles and Isaiah; Psalm 18) do not go into different files:

    kjv-train.txt     Genesis, Exodus, Leviticus, Numbers, Deuteronomy
    kjv-heldout.txt   Samuel and Kings
    kjv-trace.txt     Joshua, Judges, Job, Ezekiel, Daniel
    kjv-haystack.txt  the four Gospels and Acts

vim-manual.txt is technical prose: the chapters of Vim's user manual, unmodified, from the package
vim-runtime. It may be copied under the Open Publication License 1.0, which its first chapter names.

`apt-get download` gets the packages of Debian 12 on amd64, which are unpacked into a temporary
folder; nothing is installed. If apt-get does not know the packages, run `apt-get update` first.
--packages takes downloaded .deb files instead. The SHA-256 of every text is checked, so that all
measurements have the same texts.

Exit codes: 0 all texts are present, 2 a text is missing or differs.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import fetching
from fetching import Failed

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["bible-kjv-text", "bible-kjv", "libreadline8", "vim-runtime"]
ALL = "ge1:1-rev22:21"
VERSE = re.compile(r"([1-3]?[A-Za-z]+)(\d+):(\d+) +(\S.*)")

# Books by the program's abbreviations, with their titles.
PARTS = {
    "kjv-train.txt": {
        "Ge": "Genesis", "Exo": "Exodus", "Lev": "Leviticus", "Num": "Numbers",
        "Deu": "Deuteronomy",
    },
    "kjv-heldout.txt": {
        "1Sm": "The First Book of Samuel", "2Sm": "The Second Book of Samuel",
        "1Ki": "The First Book of the Kings", "2Ki": "The Second Book of the Kings",
    },
    "kjv-trace.txt": {
        "Josh": "Joshua", "Jdgs": "Judges", "Job": "Job", "Eze": "Ezekiel", "Dan": "Daniel",
    },
    "kjv-haystack.txt": {
        "Mat": "Matthew", "Mark": "Mark", "Luke": "Luke", "John": "John", "Acts": "The Acts",
    },
}  # fmt: skip
MANUAL = "vim-manual.txt"
SHA256 = {
    "kjv-train.txt": "6416be5f905874ebd0dfc445280fbdd13e4efdd97d3e1886b4b8856cca64923d",
    "kjv-heldout.txt": "b916bf6dd77cf67852d51cf3210200d784564a5cbf14ad686f184a09291c6961",
    "kjv-trace.txt": "3fc74a8c3a831f3069c04b618dcda4c319255745a647e3da4a29ab345300b3ab",
    "kjv-haystack.txt": "9d26bc46b18573f6b54408d80b41bdb67cae721c4e731d1ca104d9e46a74b7f8",
    "vim-manual.txt": "fe9a00b6565a2716a5689be7d668bd4f77b51db3ea2e32bbaa8563f95fd05c7d",
}


# The packages.


def download(folder: Path) -> list[Path]:
    for package in PACKAGES:
        fetching.run(["apt-get", "download", "--quiet", package], cwd=folder)
    return sorted(folder.glob("*.deb"))


def unpack(packages: list[Path], folder: Path) -> None:
    for package in packages:
        fetching.run(["dpkg-deb", "-x", package, folder])


def find_file(folder: Path, pattern: str) -> Path:
    """Returns the single path that matches."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Failed(f"expected one file {pattern} in the packages, found {len(found)}")
    return found[0]


# The texts.


def print_bible(folder: Path) -> str:
    """Runs the program of the package, which prints a line with each verse after its reference."""
    program, data = find_file(folder, "usr/bin/bible"), find_file(folder, "usr/lib/bible.data")
    libraries = {str(path.parent) for path in folder.glob("**/libreadline.so.8")}
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}
    # The program expects its data in the working folder.
    options = {"env": environment, "cwd": data.parent, "stdin": subprocess.DEVNULL}
    return fetching.run([program, "-f", ALL], **options).decode("utf-8", "replace")


def verses(printed: str) -> list[tuple[str, str, str]]:
    """Parses lines into book, chapter and text."""
    found = []
    for number, line in enumerate(printed.splitlines(), 1):
        match = VERSE.fullmatch(line.rstrip())
        if not match:
            raise Failed(
                f"line {number} of the Bible: {line[:60]!r}; "
                "expected a reference like Ge1:1, and a verse"
            )
        found.append((match[1], match[2], match[4]))
    return found


def prose(lines: list[tuple[str, str, str]], titles: dict[str, str]) -> str:
    """Joins books in the program's order; each chapter is a paragraph below its number."""
    paragraphs = []
    for book, chapters in itertools.groupby(lines, key=lambda line: line[0]):
        if book not in titles:
            continue
        paragraphs.append(titles[book])
        for chapter, texts in itertools.groupby(chapters, key=lambda line: line[1]):
            paragraphs += [f"Chapter {chapter}", " ".join(text for _, _, text in texts)]
    missing = set(titles) - {book for book, _, _ in lines}
    if missing:
        raise Failed(f"the Bible has no {', '.join(sorted(missing))}")
    return "\n\n".join(paragraphs) + "\n"


def manual(folder: Path) -> bytes:
    """Joins the numbered chapters of the user manual."""
    chapters = sorted(folder.glob("usr/share/vim/vim*/doc/usr_[0-9][0-9].txt"))
    if not chapters:
        raise Failed("vim-runtime has no user manual; expected doc/usr_01.txt and further chapters")
    return b"".join(chapter.read_bytes() for chapter in chapters)


def make_texts(folder: Path) -> dict[str, bytes]:
    """Returns the texts by name, from the unpacked packages."""
    lines = verses(print_bible(folder))
    texts = {name: prose(lines, titles).encode() for name, titles in PARTS.items()}
    return {**texts, MANUAL: manual(folder)}


# The command line.


def get(output: Path, packages: list[Path]) -> None:
    missing = fetching.find_missing(output, SHA256)
    if missing:
        with tempfile.TemporaryDirectory() as folder:
            folder, downloads = Path(folder), Path(folder) / "downloads"
            downloads.mkdir()
            unpack(packages or download(downloads), folder)
            texts = make_texts(folder)
        for name in missing:
            fetching.place(output / name, [texts[name]], SHA256[name])
    fetching.report(output, SHA256, missing)
    print("licences: kjv-*.txt public domain; vim-manual.txt Open Publication License 1.0")


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument(
        "-o", dest="output", type=Path, default=ROOT / "texts", metavar="DIR", help="output folder"
    )
    parser.add_argument(
        "--packages",
        nargs="+",
        type=Path,
        metavar="DEB",
        help=f".deb files of {', '.join(PACKAGES)}",
    )
    args = parser.parse_args()
    try:
        get(args.output, args.packages)
    except Failed as error:
        print(f"get_prose: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
