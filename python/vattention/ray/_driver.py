"""Driver: rounds of tasks, one task per shard, until no result is missing."""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vattention import _vattention
from vattention.ray import _task
from vattention.ray._connect import Cluster
from vattention.ray._inputs import find_inputs
from vattention.ray._results import Refused, Results

_INCOMPLETE = b"incomplete:"
"""Message of `vattention merge` for missing results.

Its exit code is 1 then, and also if `verify` finds a promise contradicted.
"""

_SHARDS_PER_SLOT = 4
"""Number of shards for each task that can run at the same time.

More shards lose less work when a node dies, but load the model more often.
"""

_PATIENCE = 1.0
"""Longest time between two checks of the cluster's nodes, in seconds."""


class Failed(Exception):
    """Error: a shard cannot be computed."""


@dataclass(frozen=True)
class Plan:
    """Command to run, and the resources and limits of its tasks."""

    command: list[str]
    outputs: list[str]
    """Options of `vattention merge`, such as --json FILE."""
    shards: int | None
    cpus: int
    memory: int | None
    """Bytes of memory that Ray reserves for a task; None reserves no memory."""
    retries: int
    wait: float
    """Seconds to wait for the cluster, or for a node that can run a task."""

    @property
    def needs(self) -> dict[str, float]:
        memory = {"memory": float(self.memory)} if self.memory else {}
        return {"CPU": float(self.cpus), **memory}


def run(
    plan: Plan, results: Results, connect: Callable[[], Cluster], say: Callable[[str], None]
) -> int:
    """Computes the missing results, prints all as the command does, and returns the exit code.

    Raises Failed if a shard cannot be computed, Unreachable if no node can run a task. `results`
    has the results up to then.
    """
    if results.lines:
        code = _merge(plan, results)
        if code is not None:
            return code
        say(f"continuing from {results.count} results")
    with connect() as cluster:
        cluster.expect_room(plan.needs, plan.wait)
        shards = plan.shards or max(_SHARDS_PER_SLOT * cluster.slots(plan.needs), 1)
        job: _task.Job = {
            "command": plan.command,
            "shards": shards,
            "folder": str(Path.cwd()),
            "inputs": find_inputs(plan.command),
            "version": _vattention.VERSION,
            "threads": plan.cpus,
        }
        number, code = 0, None
        while code is None:
            number, earlier = number + 1, results.count
            say(f"round {number}")
            _run_round(cluster, plan, job, results, say)
            code = _merge(plan, results)
            if code is None and results.count == earlier:
                raise Failed(
                    "a bug in vattention, please report it: "
                    "results are missing, and no shard computes them"
                )
        return code


def _run_round(
    cluster: Cluster, plan: Plan, job: _task.Job, results: Results, say: Callable[[str], None]
) -> None:
    """Runs one task for each shard, with the results so far.

    A command whose stages depend on all results of the stage before, such as the rungs of `tune`,
    needs a round for each stage. When the function returns or raises, the results of all tasks that
    have ended are stored, and the other tasks are cancelled.
    """
    ray = cluster.ray
    # Workers may have another version of this module or none, so the module is sent to them.
    ray.cloudpickle.register_pickle_by_value(_task)
    task = ray.remote(
        num_cpus=plan.cpus,
        memory=plan.memory,
        max_retries=plan.retries,
        scheduling_strategy="SPREAD",
    )(_task.run_shard_of_ray)
    known = ray.put(results.lines)
    pending = {task.remote(job, shard, known): shard for shard in range(1, job["shards"] + 1)}
    died: Counter[int] = Counter()
    done = received = 0

    def keep(reference: Any) -> None:
        nonlocal done, received
        shard = pending.pop(reference)
        outcome = _outcome(ray, reference, shard)
        if outcome["problem"]:
            problem = f"node {outcome['node']}, shard {shard}: {outcome['problem']}"
            died[shard] += 1
            if not outcome["transient"] or died[shard] > plan.retries:
                raise Failed(problem)
            say(f"{problem}\ncomputing shard {shard} again")
            pending[task.remote(job, shard, known)] = shard
            return
        try:
            results.append(outcome["header"], outcome["lines"])
        except Refused as error:
            raise Failed(f"node {outcome['node']}, shard {shard}: {error}") from None
        done, received = done + 1, received + outcome["lines"].count(b"\n")
        say(
            f"{done} of {job['shards']} shards, {received} new results; "
            f"the last from node {outcome['node']}"
        )

    try:
        seconds_without_node = 0.0
        while pending:
            for reference in ray.wait(list(pending), timeout=_PATIENCE)[0]:
                keep(reference)
            if cluster.can_run(plan.needs):
                seconds_without_node = 0.0
            else:
                seconds_without_node += _PATIENCE
            if seconds_without_node > plan.wait:
                cluster.expect_room(plan.needs, 0)
    finally:
        try:
            ready = (
                ray.wait(list(pending), num_returns=len(pending), timeout=0)[0] if pending else []
            )
            for reference in ready:
                with suppress(Failed):  # The first error is reported.
                    keep(reference)
        finally:
            for reference in pending:
                ray.cancel(reference)


def _outcome(ray: Any, reference: Any, shard: int) -> _task.Outcome:
    """Returns the outcome of a shard's task.

    Raises Failed if the task raised an exception.
    """
    try:
        outcome: _task.Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise Failed(f"shard {shard}: {error}") from None
    return outcome


def _merge(plan: Plan, results: Results) -> int | None:
    """Prints the results as the command does, and returns its exit code; None if some are missing.

    If no result is missing, the file of results is rewritten with each result once.
    """
    with tempfile.TemporaryDirectory(prefix=".vattention-", dir=results.path.parent) as temporary:
        merged = Path(temporary) / results.path.name
        command = [
            sys.executable,
            "-P",
            "-m",
            "vattention._command",
            "merge",
            str(results.path),
            "--results",
            str(merged),
            *plan.outputs,
        ]
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        if run.returncode == 1 and _INCOMPLETE in run.stderr:
            return None
        sys.stderr.buffer.write(run.stderr)
        sys.stderr.flush()
        with os.fdopen(os.dup(1), "wb") as out:  # `sys.stdout` is redirected.
            out.write(run.stdout)
        if run.returncode in (0, 1, 3):
            results.replace(merged)
        return run.returncode
