"""Stand-in for the extension module: a command with small results, and failures on request.

The tests of `vattention.ray` put this module into a package of its own. The command has two stages
of units; the second stage needs all results of the first.
"""

import json
import os
import sys
import time
from pathlib import Path

VERSION = "fake 1"
STAGES = ("first", "second")


def __getattr__(name):
    # The package imports further names from the extension module, which these tests do not use.
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (ValueError,), {})


def run_command(args):
    words = args[2:]
    options = dict(zip(words[::2], words[1::2]))
    try:
        return merge(words) if args[1] == "merge" else shard(options)
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def shard(options):
    path, units = Path(options["--results"]), int(options["--units"])
    number, shards = map(int, options["--shard"].split("/"))
    lines = path.read_text().splitlines()[1:] if path.exists() else []
    inputs = {"the trace": os.environ.get("FAKE_TRACE", "")}
    header = {
        "vattention": VERSION,
        "command": {"--units": options["--units"]},
        "inputs": inputs,
        "shards": shards,
        "shard": number,
    }
    path.write_text("".join(line + "\n" for line in [dump(header), *lines]))
    known = {json.loads(line)["unit"] for line in lines}
    for stage in STAGES:
        keys = [f"{stage} {unit}" for unit in range(units)]
        if set(keys) <= known:
            continue
        with path.open("a") as file:
            for key in keys[units * (number - 1) // shards : units * number // shards]:
                if key not in known and key != options.get("--lose"):
                    compute(key, options)
                    file.write(dump({"unit": key, "value": len(key)}) + "\n")
        return 0
    return 0


def compute(key, options):
    time.sleep(float(options["--seconds"]))
    with open(options["--log"] + "/computed", "a") as log:
        log.write(f"{key}\n")
    if "--hold" in options:
        hold(options["--hold"], Path(options["--log"] + "/held"))
    if key == options.get("--fail"):
        raise ValueError(f"{key} cannot be computed")
    if key == options.get("--die"):
        os.abort()
    if key == options.get("--die-once") and not os.path.exists(options["--log"] + "/died"):
        Path(options["--log"] + "/died").touch()
        os.abort()


def hold(raylet, held):
    """Never returns on the node of this raylet; on others, waits until that node computes, too."""
    if os.environ["RAY_RAYLET_PID"] == raylet:
        held.touch()
    while os.environ["RAY_RAYLET_PID"] == raylet or not held.exists():
        time.sleep(0.05)


def merge(words):
    source, options = Path(words[0]), dict(zip(words[1::2], words[2::2]))
    header, *lines = source.read_text().splitlines()
    units = int(json.loads(header)["command"]["--units"])
    found = {json.loads(line)["unit"]: line for line in lines}
    if len(found) != len(lines):
        raise ValueError("a result is there twice")
    keys = [f"{stage} {unit}" for stage in STAGES for unit in range(units)]
    Path(options["--results"]).write_text("".join(line + "\n" for line in [header, *lines]))
    if len(found) < len(keys):
        print(
            f"note: incomplete: {len(keys) - len(found)} of {len(keys)} results are missing",
            file=sys.stderr,
        )
        return 1
    if "--json" in options:
        Path(options["--json"]).write_text(dump(sorted(found)))
    print(f"sum {sum(json.loads(line)['value'] for line in lines)}")
    return 0


def dump(value):
    return json.dumps(value, separators=(",", ":"))
