"""Prints a table of pipelines from the answers in real/results/answers.jsonl.

    python3 real/answers.py 4096 "dense" "priority sampling, 5 %" ...

The arguments are the tokens of a case and the names of pipelines. The table has the tasks whose
cases all of these pipelines have answered.
"""

import collections
import json
import pathlib
import sys

import table

ANSWERS = pathlib.Path(__file__).parent.parent / "real/results/answers.jsonl"


def read_answers(context):
    """Returns the answer of each case, by pipeline and task."""
    found = collections.defaultdict(dict)
    for line in map(json.loads, ANSWERS.read_text().splitlines()):
        if line.get("context") == context:
            found[line["pipeline"], line["task"]][line["case"]] = line
    return found


def mean(values, weights):
    return sum(value * weight for value, weight in zip(values, weights)) / sum(weights)


def mean_error(reports, rows):
    """Returns the mean error over all steps; a dash if some answers have no errors."""
    errors = [attention["error"] for attention in reports]
    return f"{mean([error['mean'] for error in errors], rows):.4f}" if all(errors) else "-"


def row(pipeline, tasks, found):
    by_task = [list(found[pipeline, task].values()) for task in tasks]
    scores = [sum(case["score"] for case in cases) / len(cases) for cases in by_task]
    # An answer that ended before the first step of the pipeline has no rows.
    attentions = [case["attention"] for cases in by_task for case in cases]
    reports = [attention for attention in attentions if attention["rows"]]
    rows = [attention["rows"] for attention in reports]
    return (
        pipeline,
        f"{mean([attention['density'] for attention in reports], rows):.1%}",
        f"{100 * sum(scores) / len(scores):.1f}",
        *(f"{100 * score:.1f}" for score in scores),
        mean_error(reports, rows),
    )


def complete_tasks(pipelines, found):
    """Returns the tasks of which every pipeline has the largest number of cases."""
    most = max(map(len, found.values()))
    tasks = dict.fromkeys(task for _, task in found)
    return [
        task
        for task in tasks
        if all(len(found.get((pipeline, task), ())) == most for pipeline in pipelines)
    ]


context, *pipelines = sys.argv[1:]
found = read_answers(int(context))
tasks = complete_tasks(pipelines, found)
if not tasks:
    sys.exit(
        "these pipelines have no complete task in common; expected names of pipelines as in "
        "real/results/answers.jsonl"
    )
table.show(
    [
        ("pipeline", "read", "mean", *tasks, "error"),
        *(row(pipeline, tasks, found) for pipeline in pipelines),
    ]
)
