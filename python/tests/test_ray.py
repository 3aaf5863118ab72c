"""Tests of `vattention.ray` on a real cluster of two nodes on this machine.

Most tests run `fake_command.py`, which fails on request; the last ones run the real command.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shared import ROOT

import vattention

ray = (
    pytest.importorskip("ray")
    if not os.environ.get("VATTENTION_REQUIRE_RAY")
    else __import__("ray")
)
from ray.cluster_utils import Cluster  # noqa: E402

PACKAGE = Path(vattention.__file__).parent
# Time limit that only a hanging run exceeds, even on a busy machine.
PATIENCE = 600
SMALL = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


def fake_package(folder, version="fake 1"):
    """Makes a copy of the package whose extension module is `fake_command.py`."""
    package = folder / "vattention"
    package.mkdir(parents=True)
    for file in PACKAGE.iterdir():
        if not file.name.startswith(("_vattention", "__pycache__")):
            (package / file.name).symlink_to(file)
    source = (Path(__file__).parent / "fake_command.py").read_text()
    (package / "_vattention.py").write_text(source.replace("fake 1", version))
    return folder


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return fake_package(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module")
def environment(fake):
    return {**os.environ, **QUIET, "PYTHONPATH": str(fake)}


@pytest.fixture(scope="module")
def cluster(environment):
    """Cluster of one node, to which tests add others. Its workers have the fake package."""
    before = dict(os.environ)
    os.environ.update(environment)
    cluster = Cluster(initialize_head=True, head_node_args=SMALL)
    yield cluster
    cluster.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def second(cluster):
    node = cluster.add_node(wait=True, **SMALL)
    yield node
    if node in cluster.list_all_nodes():
        cluster.remove_node(node, allow_graceful=False)


def raylet(node):
    """Returns the process ID by which the tasks of a node recognize it."""
    return str(node.all_processes["raylet"][0].process.pid)


class Run:
    """Process of a driver, in its own folder."""

    def __init__(
        self, cluster, environment, folder, *words, units=12, seconds=0.0, shards=6, address=None
    ):
        log = folder / "log"
        log.mkdir(exist_ok=True)
        self.log = log / "computed"
        self.held = log / "held"
        self.results = folder / "results.jsonl"
        command = ["evaluate", "--units", str(units), "--seconds", str(seconds), "--log", str(log)]
        options = [
            "--results",
            str(self.results),
            "--shards",
            str(shards),
            "--address",
            address or cluster.address,
            "--wait",
            "20",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "vattention.ray", *command, *options, *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self):
        """Waits for the driver, and returns exit code, standard output and standard error."""
        try:
            out, said = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.process.communicate()) from None
        return self.process.returncode, out, said

    def computed(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for(self, ready):
        deadline = time.monotonic() + PATIENCE
        while not ready():
            assert self.process.poll() is None and time.monotonic() < deadline, self.end()
            time.sleep(0.05)

    def lines(self):
        return self.results.read_bytes().count(b"\n") if self.results.exists() else 0


def one_process(environment, folder, units=12):
    """Runs the command without Ray, and returns its lines of results and its table."""
    path = folder / "alone.jsonl"
    (folder / "alone").mkdir(exist_ok=True)
    words = ["evaluate", "--units", str(units), "--seconds", "0", "--log", str(folder / "alone")]
    command = [sys.executable, "-P", "-m", "vattention._command"]
    for _ in range(2):
        subprocess.run(
            [*command, *words, "--results", str(path), "--shard", "1/1"],
            env=environment,
            check=True,
            timeout=PATIENCE,
        )
    merged = folder / "merged.jsonl"
    run = subprocess.run(
        [*command, "merge", str(path), "--results", str(merged)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(merged.read_bytes().splitlines()[1:]), run.stdout


def expect_whole(run, environment, folder, units=12):
    code, out, said = run.end()
    assert code == 0, said
    lines, table = one_process(environment, folder, units)
    assert out == table
    assert sorted(run.results.read_bytes().splitlines()[1:]) == lines
    return said


def test_as_one_process(cluster, second, environment, tmp_path):
    run = Run(cluster, environment, tmp_path, "--json", "found.json")
    said = expect_whole(run, environment, tmp_path)
    assert (
        said.count("6 of 6 shards, 12 new results") == 2
        and "round 2" in said
        and "round 3" not in said
        and "24 results" in said
    )
    assert len(json.loads((tmp_path / "found.json").read_text())) == 24
    assert len(set(run.computed())) == len(run.computed()) == 24
    assert json.loads(run.results.read_text().splitlines()[0])["shard"] is None
    assert sorted(os.listdir(tmp_path)) == [
        "alone",
        "alone.jsonl",
        "found.json",
        "log",
        "merged.jsonl",
        "results.jsonl",
    ]


def test_a_node_dies(cluster, second, environment, tmp_path):
    """No result is lost or counted twice."""
    run = Run(cluster, environment, tmp_path, "--hold", raylet(second))
    run.wait_for(lambda: run.held.exists() and run.lines() > 3)
    cluster.remove_node(second, allow_graceful=False)
    said = expect_whole(run, environment, tmp_path)
    assert "24 results" in said
    assert set(run.computed()) == {
        f"{stage} {unit}" for stage in ("first", "second") for unit in range(12)
    }
    assert len(run.computed()) == 25, "only the shard that ran there is computed again"


def test_a_node_dies_once_too_often(cluster, second, environment, tmp_path):
    """The driver reports the failure, and the results up to then are stored."""
    run = Run(cluster, environment, tmp_path, "--retries", "0", "--hold", raylet(second))
    run.wait_for(lambda: run.held.exists() and run.lines() > 3)
    cluster.remove_node(second, allow_graceful=False)
    code, out, said = run.end()
    assert (
        (code, out) == (2, "")
        and "error: shard " in said
        and "node" in said
        and "Traceback" not in said
    ), said
    assert run.lines() > 3


def test_a_round_without_results_is_an_error(cluster, environment, tmp_path):
    code, out, said = Run(cluster, environment, tmp_path, "--lose", "second 3", shards=2).end()
    assert (code, out) == (2, "") and "results are missing, and no shard computes them" in said, (
        said
    )
    assert "round 3" in said and "round 4" not in said and "23 results" in said, said


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_driver_continues(cluster, environment, tmp_path, ending):
    """The second driver has another number of shards."""
    first = Run(cluster, environment, tmp_path, seconds=0.3, shards=12)
    first.wait_for(lambda: first.lines() > 3)
    first.process.send_signal(ending)
    code, out, said = first.end()
    assert code != 0 and not out
    if ending == signal.SIGINT:
        assert code == 130 and "Traceback" not in said and "run again" in said, said
    kept = first.results.read_bytes()
    # Waits until the tasks of the run have ended, too.
    computed = None
    while computed != (computed := len(first.computed())):
        time.sleep(3)
    with first.results.open("ab") as file:
        file.write(b'{"unit":"fir')  # The rest of an interrupted write.
    again = Run(cluster, environment, tmp_path, shards=5)
    said = expect_whole(again, environment, tmp_path)
    assert f"continuing from {kept.count(bytes([10])) - 1} results" in said
    assert len(again.computed()) <= 24 + 2


def test_a_complete_file_needs_no_cluster(environment, tmp_path, cluster):
    one_process(environment, tmp_path)
    (tmp_path / "merged.jsonl").rename(tmp_path / "results.jsonl")
    run = Run(cluster, environment, tmp_path, address="127.0.0.1:1")
    expect_whole(run, environment, tmp_path)
    assert not run.computed()


def test_an_error_is_reported_once(cluster, second, environment, tmp_path):
    run = Run(cluster, environment, tmp_path, "--fail", "first 3", seconds=0.2)
    code, out, said = run.end()
    assert (code, out) == (2, "")
    assert (
        said.count("first 3 cannot be computed") == 1 and "shard 2" in said and "node " in said
    ), said
    assert run.computed().count("first 3") == 1
    assert "Traceback" not in said


def test_the_command_dies(cluster, environment, tmp_path):
    once = Run(cluster, environment, tmp_path, "--die-once", "first 3")
    expect_whole(once, environment, tmp_path)
    assert once.computed().count("first 3") == 2
    other = tmp_path / "other"
    other.mkdir()
    always = Run(cluster, environment, other, "--die", "first 3", "--retries", "1")
    code, _, said = always.end()
    assert code == 2 and "died of signal 6" in said and "Traceback" not in said, said
    assert always.computed().count("first 3") == 2


def test_another_version(cluster, environment, tmp_path):
    # Only the node with the other version has the two cores that the task needs.
    other = fake_package(tmp_path / "package", "fake 2")
    node = cluster.add_node(
        wait=True, env_vars={"PYTHONPATH": str(other)}, **{**SMALL, "num_cpus": 2}
    )
    try:
        code, _, said = Run(cluster, environment, tmp_path, "--cpus-per-task", "2").end()
    finally:
        cluster.remove_node(node, allow_graceful=False)
    assert code == 2 and "vattention fake 2 is installed; expected vattention fake 1" not in said
    assert (
        said.count("fake 2 is installed; expected fake 1, as on the driver") == 1
        and "node " in said
    ), said


def test_inputs_that_differ(cluster, environment, tmp_path):
    """A task refuses files that differ from the driver's, as they may on another node."""
    from vattention.ray._inputs import find_inputs
    from vattention.ray._task import check_inputs

    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    (model / "notes.txt").write_bytes(b"")
    trace = tmp_path / "trace.safetensors"
    trace.write_bytes(b"trace")
    prefill = tmp_path / "prefill.toml"
    prefill.write_text('strategy = "sample-attention"\n')
    inputs = find_inputs(
        [
            "evaluate",
            "--model",
            str(model),
            f"--trace={trace}",
            "--prefill",
            str(prefill),
            "no-file",
        ]
    )
    assert [entry["path"] for entry in inputs] == [
        str(model / "model.safetensors"),
        str(trace),
        str(prefill),
    ]
    assert check_inputs(str(tmp_path), inputs) is None
    trace.write_bytes(b"other")
    assert f"{trace}: differs from the driver's file: 5 bytes" in (
        check_inputs(str(tmp_path), inputs) or ""
    )
    (model / "model.safetensors").unlink()
    expected = (
        f"{model / 'model.safetensors'}: No such file or directory; "
        "expected the driver's file of 7 bytes"
    )
    assert expected in (check_inputs(str(tmp_path), inputs) or "")
    assert "does not exist" in (check_inputs(str(tmp_path / "gone"), []) or "")


def test_the_files_of_pipelines_and_grids(tmp_path):
    """Inputs include the files that pipelines extend, that grids vary and that selectors name."""
    from vattention.ray._inputs import find_inputs

    def find(*words):
        return {os.path.realpath(entry["path"]) for entry in find_inputs(["tune", *words])}

    learnt = tmp_path / "maps.safetensors"
    learnt.write_bytes((ROOT / "weights" / "smollm2-hash.safetensors").read_bytes())
    base, own, grid, bad = (
        tmp_path / name for name in ("base.toml", "own.toml", "grid.toml", "bad.toml")
    )
    base.write_text(
        f'[[selectors]]\ntype = "hash-attention"\nsize = 8\nweights = "{learnt.name}"\n'
    )
    own.write_text('extends = "base.toml"\n')
    grid.write_text('base = "own.toml"\n[grid]\nselectors.0.size = [8, 16]\n')
    bad.write_text("size = ")
    assert find(str(own)) == {str(path) for path in (learnt, base, own)}
    assert find(str(grid), str(own)) == {str(path) for path in (learnt, base, own, grid)}
    assert find(f"--pipelines={bad}") == {str(bad)}


def test_a_node_that_reads_another_file(cluster, environment, tmp_path):
    """The driver refuses results that depend on a file that it did not compare."""
    node = cluster.add_node(wait=True, env_vars={"FAKE_TRACE": "another"}, **SMALL)
    try:
        code, out, said = Run(cluster, environment, tmp_path, seconds=0.2).end()
    finally:
        cluster.remove_node(node, allow_graceful=False)
    expected = (
        "the inputs differ from those of earlier results: the trace; "
        "expected the same inputs on all nodes"
    )
    assert (code, out) == (2, "") and expected in said, said
    assert "node " in said and "Traceback" not in said, said


def test_options_that_the_cluster_does_not_have(capsys, tmp_path):
    from vattention.ray.__main__ import main

    for words, expected in [
        (["evaluate", "--shard=1/2"], "--shard: shards are made here"),
        (["compare", "--dump", "x"], "--dump: it needs more results than the shards compute here"),
        (["verify", "--plot", "x"], "--plot of verify: it needs more results"),
        (["study", "-o", "x"], "--output of study: only tune has this option"),
        (["capture"], "expected a command first: evaluate, compare, study, tune, verify"),
    ]:
        with pytest.raises(SystemExit, match="2"):
            main([*words, "--results", str(tmp_path / "results.jsonl")])
        assert expected in capsys.readouterr().err
    assert not os.listdir(tmp_path)


def test_nothing_answers(cluster, environment, tmp_path):
    code, _, said = Run(cluster, environment, tmp_path, "--wait", "2", address="127.0.0.1:1").end()
    assert code == 2 and "127.0.0.1:1: nothing answers within 2 seconds" in said, said
    # A server that is not Ray accepts the connection.
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, _, said = Run(
            cluster, environment, tmp_path, "--wait", "2", address=f"127.0.0.1:{port}"
        ).end()
    assert code == 2 and "no Ray cluster answers within 2 seconds" in said, said


def test_no_node_is_large_enough(cluster, environment, tmp_path):
    for words, needed in [
        (["--cpus-per-task", "64"], "64 cores"),
        (["--memory-per-task", "9999"], "1 cores, 9999 GiB of memory"),
    ]:
        code, _, said = Run(cluster, environment, tmp_path, *words, "--wait", "2").end()
        assert (
            code == 2 and f"the resources of a task: {needed}; " in said and "1 cores, " in said
        ), said


def test_files_that_are_something_else(cluster, environment, tmp_path):
    (tmp_path / "results.jsonl").write_text("notes\n")
    code, _, said = Run(cluster, environment, tmp_path).end()
    assert code == 2 and "expected a file of results by vattention" in said
    assert (tmp_path / "results.jsonl").read_text() == "notes\n"


def test_two_drivers_of_one_file(cluster, environment, tmp_path):
    first = Run(cluster, environment, tmp_path, seconds=0.2)
    first.wait_for(lambda: first.results.exists() and first.computed())
    code, _, said = Run(cluster, environment, tmp_path).end()
    assert code == 2 and "another driver is using this file" in said
    assert first.end()[0] == 0


SMOLLM2 = ["--trace", "data/smollm2.safetensors"]
MODEL = [
    "--model",
    "models/recall",
    "--pipelines",
    "configs/dense.toml",
    "configs/streaming-llm.toml",
]
PREFILL = ["--prefill", "configs/prefill/sample-attention.toml"]
GRID = """
base = "{root}/configs/quest.toml"
[grid]
selectors.2.size = [0.02, 0.05, 0.2]
selectors.2.page = [8, 16]
selectors.2.score = ["head", "group"]
"""
TUNE = [
    *SMOLLM2,
    "--layers",
    "9",
    "--queries",
    "8",
    "--rungs",
    "2",
    "--at",
    "density=0.1",
    "--at",
    "error=0.2",
]
HELD_OUT = [
    "--held-out",
    "data/smollm2.safetensors",
    "--held-out-layers",
    "23",
    "--held-out-queries",
    "4",
]
# Commands, and the number of results after which a node is killed; None means no node is.
REAL = {
    "evaluate": (
        [
            "evaluate",
            *MODEL,
            *PREFILL,
            "--tasks",
            "niah_single_1",
            "--context",
            "512",
            "--cases",
            "6",
        ],
        1,
    ),
    "compare": (
        [
            "compare",
            "configs/quest.toml",
            "configs/streaming-llm.toml",
            *SMOLLM2,
            "--queries",
            "8",
            "--density",
            "0.1",
        ],
        1,
    ),
    "tune": (["tune", "{folder}/grid.toml", *TUNE, *HELD_OUT], 1 + 12),
    "verify": (["verify", "configs/priority.toml", *SMOLLM2, "--trials", "320"], None),
    "study": (["study", "limit", "configs/priority.toml", *SMOLLM2, "--queries", "4"], None),
}


@pytest.fixture(scope="module")
def own_cluster():
    """Cluster of one node, whose workers have the package's own command."""
    variables = {"env_vars": {"PYTHONPATH": ""}}
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, **variables})
    yield cluster
    cluster.shutdown()


@pytest.mark.parametrize("name", REAL)
def test_the_real_command(own_cluster, tmp_path, name):
    """Two nodes, one of which is killed, give the results of a single process.

    A search for densities and the rungs of `tune` need several rounds.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **QUIET,
    }
    (tmp_path / "grid.toml").write_text(GRID.format(root=ROOT))
    command, came = REAL[name]
    command = [word.format(folder=tmp_path) for word in command]
    alone, shared = Outputs(tmp_path / "alone", name), Outputs(tmp_path / "shared", name)
    start = [sys.executable, "-P", "-m"]
    line = [*start, "vattention._command", *command, *alone.options]
    one = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert one.returncode == 0, one.stderr
    second = own_cluster.add_node(wait=True, **SMALL, env_vars={"PYTHONPATH": ""})
    try:
        options = ["--address", own_cluster.address, "--shards", "4", "--wait", "20"]
        driver = subprocess.Popen(
            [*start, "vattention.ray", *command, *shared.options, *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if came is not None:
            deadline = time.monotonic() + PATIENCE
            while driver.poll() is None and time.monotonic() < deadline and shared.count() < came:
                time.sleep(0.05)
            assert driver.poll() is None, driver.communicate()
            own_cluster.remove_node(second, allow_graceful=False)
        out, said = driver.communicate(timeout=PATIENCE)
    finally:
        if second in own_cluster.list_all_nodes():
            own_cluster.remove_node(second, allow_graceful=False)
    assert driver.returncode == 0, said
    assert shared.found() == alone.found()
    assert shared.kept() == alone.kept()
    assert shared.pipelines() == alone.pipelines() and bool(alone.pipelines()) == (name == "tune")
    if name == "tune":
        assert out == one.stdout
        assert "round 3" in said and "round 4" not in said, said


class Outputs:
    """Output files of a command, in their own folder."""

    def __init__(self, folder, command):
        folder.mkdir()
        self.results, self.json, self.best = (
            folder / "results.jsonl",
            folder / "found.json",
            folder / "best",
        )
        self.options = ["--results", str(self.results), "--json", str(self.json)]
        if command == "tune":
            self.options += ["--output", str(self.best)]

    def found(self):
        return without_times(json.loads(self.json.read_text()))

    def kept(self):
        """Returns results by unit or digest, each of which must occur once."""
        text = self.results.read_text() if self.results.exists() else ""
        lines = [
            json.loads(line) for line in text.splitlines() if not line.startswith('{"vattention":')
        ]
        kept = {line.get("unit") or line["digest"]: without_times(line) for line in lines}
        assert len(kept) == len(lines)
        return kept

    def count(self):
        """Returns the number of results in the file of a driver."""
        return self.results.read_bytes().count(b"\n") - 1 if self.results.exists() else 0

    def pipelines(self):
        return (
            {path.name: path.read_text() for path in self.best.iterdir()}
            if self.best.exists()
            else {}
        )


def without_times(results):
    """Returns results without their measured times."""
    match results:
        case dict():
            return {
                name: without_times(value)
                for name, value in results.items()
                if not name.endswith(("seconds", "_ms", "_us"))
            }
        case list():
            return [without_times(item) for item in results]
    return results
