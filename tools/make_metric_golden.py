"""Scores of the benchmarks' reference implementations, crates/tasks/tests/golden/metrics.json, and a parquet file beside them.

    pip install pyarrow rouge==1.0.1 fuzzywuzzy==0.18.0        # without python-Levenshtein, which rounds otherwise
    python3 tools/make_metric_golden.py FOLDER

FOLDER has the published scripts, which are not shipped here:

    longbench_metrics.py   github.com/THUDM/LongBench, metrics.py (without its import of jieba)
    babilong_metrics.py    github.com/booydar/babilong, babilong/metrics.py
    ruler_constants.py     github.com/NVIDIA/RULER, scripts/eval/synthetic/constants.py
    math_equivalence.py    github.com/hendrycks/math, modeling/math_equivalence.py
"""

import json
import random
import sys
from pathlib import Path

import pyarrow
from pyarrow import parquet

TEXTS = [
    "", " ", ".", "...", "the", "A", "an apple", "Apple.", "The apple, the pear and an apple.", "apple pear apple pear",
    "Paris", "paris!", "It is Paris. It was not Rome.", "It was not Rome. It is Paris", "yes", "Yes.", "no, unanswerable",
    "Zoë's naïve café — the best", "the—the—the", "zoes naive cafe", "ΑΣ ας Σ", "İstanbul the", "x\x1cy\u3000z a\u00a0b",
    "under_score a_the the_a", "a b c d e f", "f e d c b a", "a b. c d. e f", "c d. a b. e f", "a. a. a. b", "word " * 40,
    "one two three two one. two three. one. three two", "three. two one two three. one two", " leading.  trailing .", "1,000 and 1000",
    "Ticks `x` # no\nreturn the value", "\n\n// comment\nx = 1", "x = 1", "x  =  1  ", "    return self.value", "return self.values()",
    "abcdefghij" * 25, "jihgfedcba" * 25, "abcdefghij" * 12 + "0123456789" * 12, "for i in range(10): total += i", "日本語 テキスト", "日本 テキスト。",
]
# Which of several longest common subsequences is found decides what their union has.
TIES = [("b a. a", "a b"), ("b a. b", "a b"), ("c b a. a c", "a b c"), ("x z y. y", "z y x. x z")]
NUMBERS = ["", "3", "There are 3, or 4 of 3.", "3 3 3", "33", "03", "3.0", "Paragraph 3", "paragraph 12 and Paragraph 3", "12", "none"]
CLASSES = ["Animal", "Animal food", "food", "Human", "Human being", "being", "Date", "Human"]
CLASS_ANSWERS = ["", "Animal food", "Animal", "Type: Human being", "food or Date", "Human being, Animal food, Date", "animal", "nothing"]
ROOMS = ["bathroom", "bedroom", "garden", "hallway", "kitchen", "office"]
ROOM_CASES = [
    (target, output, question)
    for target in ("garden", "Kitchen")
    for question in ("Where is Mary?", "Where was the apple before the Garden?")
    for output in ("", "garden", "The GARDEN. Not the kitchen", "garden and kitchen", "the kitchen<example>garden", "Kitchen", "kitchen.garden")
]
MATCHES = [
    (["12", "Fox"], "fox 12"), (["12", "Fox"], "fox"), (["12", "Fox"], ""), (["Émile"], "éMILE"), (["a", "b", "c"], "cab"), (["yes"], "no"),
]
MATH = [
    "", "1", "01", " 1 ", "0.5", ".5", "1/2", "\\frac12", "\\frac{1}{2}", "\\dfrac{1}{2}", "\\tfrac1{2}", "-1/2", "-\\frac12", "1/02", "+1/2",
    "\\frac1", "\\frac", "\\sqrt3", "\\sqrt{3}", "\\sqrt", "2\\sqrt3+\\sqrt{5}", "x=5", "5", "abc=5", "a=b=5", "10\\%", "10%", "10", "\\$10", "90^\\circ",
    "90^{\\circ}", "90", "12\\text{ cm}", "12", "12\\text{ cm}\\text{ x}", "\\left(1,2\\right)", "(1,2)", "(1, 2)", "\\text{even}", "1\\!000", "1000", "x \\in .5",
    "{.5}", "{0.5}", "a\nb", "ab", "a\\\\b", "a\\b", "1/2/3", "x/2", "٣/2", "0/1", "-0/1", "1/0",
]


def main(folder):
    sys.path.insert(0, folder)
    import babilong_metrics
    import longbench_metrics
    import math_equivalence
    import ruler_constants

    drawn = random.Random(0)
    pairs = [(a, b) for a in TEXTS for b in drawn.sample(TEXTS, 2)] + [(a, a) for a in TEXTS] + TIES
    cases = []

    def add(metric, answer, answers, score, labels=()):
        case = {"metric": metric, "answer": answer, "answers": answers, "score": float(score)}
        cases.append(case | ({"labels": list(labels)} if labels else {}))

    for answer, right in pairs:
        add("word-f1", answer, [right], longbench_metrics.qa_f1_score(answer, right))
        add("rouge", answer, [right], longbench_metrics.rouge_score(answer, right))
        add("edit-similarity", answer, [right], longbench_metrics.code_sim_score(answer, right))
    for answer in NUMBERS:
        for right in ("3", "12", "03"):
            add("count", answer, [right], longbench_metrics.count_score(answer, right))
            right = f"Paragraph {right}"
            add("retrieval", answer, [right], longbench_metrics.retrieval_score(answer, right))
    for answer in CLASS_ANSWERS:
        for right in CLASSES:
            score = longbench_metrics.classification_score(answer, right, all_classes=CLASSES)
            add("classification", answer, [right], score, CLASSES)
    for target, output, question in ROOM_CASES:
        score = babilong_metrics.compare_answers(target, output, question, ROOMS)
        labels = [room for room in ROOMS if room not in question.lower()]
        add("only-label", output, [target], score, labels)
    for right, answer in MATCHES:
        add("match-all", answer, right, ruler_constants.string_match_all([answer], [right]))
        add("match-part", answer, right, ruler_constants.string_match_part([answer], [right]))
    same = [(a, b) for a in MATH for b in MATH if a == b or math_equivalence.is_equiv(a, b)]
    for told, right in same + [(a, b) for a in MATH for b in drawn.sample(MATH, 2)]:
        # Braces that do not close end no box.
        add("boxed", f"So it is \\boxed{{{told}}}.", [right], math_equivalence.is_equiv(told, right))

    rows = [
        {"input": "Who lit the lamp?", "context": context, "answers": ["Ann", "the keeper"], "length": length,
         "dataset": "qasper", "language": "en", "all_classes": None, "_id": "1"}
        for context, length in (("Ann kept the light.", 6), ("Über 日本", 7))
    ]
    path = Path(__file__).parents[1] / "crates/tasks/tests/golden/metrics.json"
    path.parent.mkdir(exist_ok=True)
    lines = (json.dumps(case, ensure_ascii=True) for case in cases)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    columns = pyarrow.schema([
        ("input", pyarrow.string()), ("context", pyarrow.string()), ("answers", pyarrow.list_(pyarrow.string())),
        ("length", pyarrow.int32()), ("dataset", pyarrow.string()), ("language", pyarrow.string()),
        ("all_classes", pyarrow.list_(pyarrow.string())), ("_id", pyarrow.string()),
    ])
    parquet.write_table(pyarrow.Table.from_pylist(rows, columns), path.with_name("rows.parquet"), compression="snappy")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main(sys.argv[1])
