"""What the answers that are kept say so far of the pipelines named like the arguments, over the tasks whose cases all of
them have answered: `python3 real/answers.py 4096 "dense" "priority sampling, 5 %" ...`, the tokens of a case first."""

import collections
import json
import pathlib
import sys

import table

ANSWERS = pathlib.Path(__file__).parent.parent / "real/results/answers.jsonl"


def answers(context):
    """By pipeline and task: score, rows, share read, and error of each case."""
    found = collections.defaultdict(dict)
    for line in map(json.loads, ANSWERS.read_text().splitlines()):
        if line.get("context") == context:
            found[line["pipeline"], line["task"]][line["case"]] = line
    return found


def mean(values, weights):
    return sum(value * weight for value, weight in zip(values, weights)) / sum(weights)


def mean_error(seen, rows):
    """Over all steps; a dash where some answers were asked without errors."""
    errors = [attention["error"] for attention in seen]
    return f"{mean([error['mean'] for error in errors], rows):.4f}" if all(errors) else "-"


def row(pipeline, tasks, found):
    by_task = [list(found[pipeline, task].values()) for task in tasks]
    scores = [sum(case["score"] for case in cases) / len(cases) for cases in by_task]
    # An answer that ended before the pipeline took a step has no rows.
    seen = [case["attention"] for cases in by_task for case in cases if case["attention"]["rows"]]
    rows = [attention["rows"] for attention in seen]
    return (
        pipeline,
        f"{mean([attention['density'] for attention in seen], rows):.1%}",
        f"{100 * sum(scores) / len(scores):.1f}",
        *(f"{100 * score:.1f}" for score in scores),
        mean_error(seen, rows),
    )


def answered_by_all(pipelines, found):
    """Tasks of which each pipeline has as many cases as any has of any."""
    most = max(map(len, found.values()))
    tasks = dict.fromkeys(task for _, task in found)
    return [
        task
        for task in tasks
        if all(len(found.get((pipeline, task), ())) == most for pipeline in pipelines)
    ]


context, *pipelines = sys.argv[1:]
found = answers(int(context))
tasks = answered_by_all(pipelines, found)
if not tasks:
    sys.exit(
        "no task has been answered by all of them; expected names of pipelines as in real/results/answers.jsonl"
    )
table.show(
    [
        ("pipeline", "read", "mean", *tasks, "error"),
        *(row(pipeline, tasks, found) for pipeline in pipelines),
    ]
)
