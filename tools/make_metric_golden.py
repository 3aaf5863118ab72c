"""Golden scores of the benchmarks' reference implementations: lab/tasks/tests/golden/metrics.json.

    pip install pyarrow rouge==1.0.1 rouge-score==0.1.2 nltk==3.10.4 fuzzywuzzy==0.18.0 \
        unidecode==1.4.0 lifelines==0.30.3
    python3 tools/make_metric_golden.py FOLDER

The tool also writes stems of words (stems.txt) and parquet files to this folder. Do not install
python-Levenshtein, which rounds differently.

FOLDER has the published scripts, which are not shipped here:

    longbench_metrics.py   github.com/THUDM/LongBench, metrics.py (without its import of jieba)
    babilong_metrics.py    github.com/booydar/babilong, babilong/metrics.py
    ruler_constants.py     github.com/NVIDIA/RULER, scripts/eval/synthetic/constants.py
    math_equivalence.py    github.com/hendrycks/math, modeling/math_equivalence.py
    loogle_metrics.py      github.com/bigai-nlco/LooGLE, Evaluation/automatic_metrics.py
                           (without METEOR and BERTScore and their imports)
    infinitebench_scores.py  github.com/OpenBMB/InfiniteBench, src/compute_scores.py at 88b3daa
                             (without tqdm, evaluate and args, and the functions that need them)
    longbench_v2_pred.py   github.com/THUDM/LongBench, pred.py (only extract_answer, with re)
    zero_scrolls_metrics.py  huggingface.co/datasets/tau/zero_scrolls, metrics: f1.py, accuracy.py,
                             exp_similarity.py and concordance_index.py in one file
"""

import json
import math
import random
import sys
import warnings
from pathlib import Path

import pyarrow
from nltk.stem import PorterStemmer
from pyarrow import parquet
from rouge_score import rouge_scorer

TEXTS = [
    "",
    " ",
    ".",
    "...",
    "the",
    "A",
    "an apple",
    "Apple.",
    "The apple, the pear and an apple.",
    "apple pear apple pear",
    "Paris",
    "paris!",
    "It is Paris. It was not Rome.",
    "It was not Rome. It is Paris",
    "yes",
    "Yes.",
    "no, unanswerable",
    "Zoë's naïve café — the best",
    "the—the—the",
    "zoes naive cafe",
    "ΑΣ ας Σ",
    "İstanbul the",
    "x\x1cy\u3000z a\u00a0b",
    "under_score a_the the_a",
    "a b c d e f",
    "f e d c b a",
    "a b. c d. e f",
    "c d. a b. e f",
    "a. a. a. b",
    "word " * 40,
    "one two three two one. two three. one. three two",
    "three. two one two three. one two",
    " leading.  trailing .",
    "1,000 and 1000",
    "Ticks `x` # no\nreturn the value",
    "\n\n// comment\nx = 1",
    "x = 1",
    "x  =  1  ",
    "    return self.value",
    "return self.values()",
    "abcdefghij" * 25,
    "jihgfedcba" * 25,
    "abcdefghij" * 12 + "0123456789" * 12,
    "for i in range(10): total += i",
    "日本語 テキスト",
    "日本 テキスト。",
]
# Texts with several longest common subsequences, whose union depends on the one that is found.
TIES = [("b a. a", "a b"), ("b a. b", "a b"), ("c b a. a c", "a b c"), ("x z y. y", "z y x. x z")]
NUMBERS = [
    "",
    "3",
    "There are 3, or 4 of 3.",
    "3 3 3",
    "33",
    "03",
    "3.0",
    "Paragraph 3",
    "paragraph 12 and Paragraph 3",
    "12",
    "none",
]
CLASSES = ["Animal", "Animal food", "food", "Human", "Human being", "being", "Date", "Human"]
CLASS_ANSWERS = [
    "",
    "Animal food",
    "Animal",
    "Type: Human being",
    "food or Date",
    "Human being, Animal food, Date",
    "animal",
    "nothing",
]
ROOMS = ["bathroom", "bedroom", "garden", "hallway", "kitchen", "office"]
ROOM_CASES = [
    (target, output, question)
    for target in ("garden", "Kitchen")
    for question in ("Where is Mary?", "Where was the apple before the Garden?")
    for output in (
        "",
        "garden",
        "The GARDEN. Not the kitchen",
        "garden and kitchen",
        "the kitchen<example>garden",
        "Kitchen",
        "kitchen.garden",
    )
]
MATCHES = [
    (["12", "Fox"], "fox 12"),
    (["12", "Fox"], "fox"),
    (["12", "Fox"], ""),
    (["Émile"], "éMILE"),
    (["a", "b", "c"], "cab"),
    (["yes"], "no"),
]
MATH = [
    "",
    "1",
    "01",
    " 1 ",
    "0.5",
    ".5",
    "1/2",
    "\\frac12",
    "\\frac{1}{2}",
    "\\dfrac{1}{2}",
    "\\tfrac1{2}",
    "-1/2",
    "-\\frac12",
    "1/02",
    "+1/2",
    "\\frac1",
    "\\frac",
    "\\sqrt3",
    "\\sqrt{3}",
    "\\sqrt",
    "2\\sqrt3+\\sqrt{5}",
    "x=5",
    "5",
    "abc=5",
    "a=b=5",
    "10\\%",
    "10%",
    "10",
    "\\$10",
    "90^\\circ",
    "90^{\\circ}",
    "90",
    "12\\text{ cm}",
    "12",
    "12\\text{ cm}\\text{ x}",
    "\\left(1,2\\right)",
    "(1,2)",
    "(1, 2)",
    "\\text{even}",
    "1\\!000",
    "1000",
    "x \\in .5",
    "{.5}",
    "{0.5}",
    "a\nb",
    "ab",
    "a\\\\b",
    "a\\b",
    "1/2/3",
    "x/2",
    "٣/2",
    "0/1",
    "-0/1",
    "1/0",
]

# Lines are the sentences of rouge-score.
SUMMARIES = [
    "",
    "\n",
    "...",
    "a",
    "Ann kept the lamp.",
    "Ann keeps lamps,\nand kept them.",
    "The keeper was keeping a lamp\n\nThe bell was lost.",
    "The bell was lost.\nThe keeper was keeping a lamp",
    "a b c d e f",
    "a b c\nd e f",
    "d e f\na b c",
    "w1 w2 w3 w4 w5",
    "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5",
    "w1 w2\nw1 w3\nw1 w5",
    "w1 w1 w1 w2\nw2 w1",
    "c b a\na c",
    "a b c\na b",
    "x z y\ny",
    "z y x\nx z",
    "relational conditional rationalisations\nvietnamization of the hopefulness",
    "relate condition rational\nvietnamize hope",
    "ponies and pony, ties and tie, skies and sky",
    "Pony and ponies, tie and tied, sky",
    "Zoë's naïve café",
    "zo s na ve caf",
    "İSTANBUL \u212aelvin",
    "istanbul kelvin",
    "under_score 1990s",
    "under score 1990",
    "日本語\nテキスト",
    "one\rtwo\r\nthree",
    "one two three",
    "The storm came at night and the people of the harbour slept.\n"
    "Only the keeper saw the bell fall, and he told nobody.",
    "At night a storm came.\n"
    "The keeper told people that he saw the falling bell; nobody slept in the harbour.",
]
MASKS = {"<mask-0>": "Ann Tarrow", "<mask-1>": "Brack", "<mask-2>": "Tom O'Neil"}
CLOZES = [
    "",
    "None",
    "null",
    "{}",
    "[]",
    "Ann Tarrow",
    str(MASKS),
    json.dumps(MASKS),
    f" {MASKS}\n",
    f"{MASKS}\n\nThe masks",
    f"\n {MASKS}",
    f"\n\n{MASKS}",
    f"({MASKS})",
    f"{MASKS},",
    "dict(a=1)",
    "{1, 2}",
    "{'<mask-0>'}",
    "{'<mask-0>': 'Ann'}",
    "{'<mask-0>': 'ann tarrow', '<mask-1>': 'Brack'}",
    '{"<mask-0>": "Ann Tarrow", "<mask-1>": "Port Brack"}',
    "{'<mask-1>': 'Brack', '<mask-1>': 'Ann'}",
    "{'<mask-2>': 'Tom O\\'Neil'}",
    '{"<mask-2>": "Tom O\'Neil",}',
    "{'<mask-2>': 'Tom O'Neil'}",
    "{'<mask-1>': 'Bra' 'ck'}",
    "{'<mask-1>': '''Brack'''}",
    "{'<mask-1>': 'B\\x72ack'}",
    "{'<mask-1>': 'B\\u0072ack', 3: None, (): True}",
    "{'<mask-1>': 'Brack'  # where\n}",
    "{'<mask-1>': 'Brack'",
    "{'<mask-1>': Brack}",
    "{'<mask-1>': 'Brack\n'}",
    "{'<mask-1>' 'Brack'}",
    "{'mask-1': 'Brack'}",
    "{'<mask-0>': '', '<mask-1>': ' Brack '}",
    "{'<mask-0>': 'Tarrow of Brack', '<mask-1>': 'the Brack of Ann'}",
]
DIGITS = [
    "",
    "71432",
    " 71432.",
    "The pass key is 71432. Remember 9.",
    "7143",
    "071432",
    "pass key",
    "7 1 4 3 2",
    "-71432",
    "71,432",
    "x71432y",
    "71432.5",
    "3",
    "3.0",
    "3.50",
    "3.5.1",
    "3.",
    ".5",
    "It is 3, not 4",
    "4, not 3",
    "3 or 71432",
    "-3",
    "007",
]
KEYS = [
    "",
    "ab-12",
    '"ab-12"',
    "The value is: ab-12.",
    "ab-123",
    "AB-12",
    "{'k': 'ab-12'}",
    "ab- 12",
    "ab-12\u3000x",
    "ab\n-12",
    "(ab-12)",
]
NAMES = [
    "",
    "ANN",
    "Ann",
    "ann:",
    "It is Ann!",
    "Anna",
    "ANN TARROW",
    "{ann}",
    "Straße",
    "the name\nann",
    "Commander Bill Ecker.",
    "ben or bo",
    "An n",
    "Ann\nTarrow",
]
RIGHT_NAMES = [
    ["ANN", "BEN"],
    ["ANN TARROW"],
    ["STRASSE"],
    ["ECKER", "COMMANDER BILL ECKER"],
    ["Bill"],
]
RUNS = [
    "",
    "4",
    " 4.",
    "-4",
    "+4",
    "The value is `4`",
    "func_1(2) = 4",
    "4 or 5",
    "5 or 4",
    "4.0",
    "0.4",
    "1_000",
    "1__000",
    "_4",
    "1000",
    "four",
    "4)",
    '"4":',
    "-0",
    "00",
    "0",
]
OPTIONS = ["Walking", "the_function"]
CHOICES = [
    "",
    " ",
    "B",
    "B.",
    "B: x",
    " B",
    "\nB",
    "b",
    "A",
    "A or B",
    "Walking",
    "walking",
    "Walking is it",
    "BCD",
    "D",
    "E",
    "The answer is: B",
    "The answer is B.",
    "The answer is  B",
    "answer: B",
    "answer:B",
    "The answer is:",
    "The answer is: ",
    "the option is B",
    "It says: option is A, the answer is B",
    "I think it is A. No, B.",
    "so CD it is B",
    "so AC it is B",
    ": B",
    ":\n\nB. Walking",
    "The correct option is: B",
    'The correct option is: "B"',
    "Option B",
    "The error is: B",
    "is: the_function",
    "is:the_function",
    "**B**",
    "answer is: Option B",
    "answer is: **B**",
    "answer: the_function",
    "The answer is: A. is: B",
    "The name is: A, the answer is: B",
    "-B:",
    "B-",
    "the_function",
    "The\u3000answer is: B",
    "answer is:\u3000B",
    "option is Walking",
]
VALUES = [[1, 4, 8], [12, 0, 5], [1, -2, 3], [7]]
SERIES = [
    "",
    "[1, 4, 8]",
    "1 4 8 9",
    "1, 4",
    "1, 4, 9",
    "0 1 4 8",
    "12 0 5",
    "[012, 00, 5]",
    "1 -2 3",
    "7",
    "77",
    "7.7",
    "one",
    "1e4",
]
CHINESE = [
    "",
    "灯塔",
    "灯塔。",
    "《灯塔》",
    "在 灯塔里！",
    "Ann在灯塔",
    "ann",
    "灯灯塔塔",
    "一·二〈",
    "塔灯",
    "a\u3000n\x1cn",
    "ANN！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏.",
]
# Letters that the Python package unidecode and the crate deunicode transliterate.
FOREIGN = [
    "Émile Zola",
    "emile zola",
    "Ærøskøbing, Straße",
    "aeroskobing strasse",
    "The Pokémon and a señor",
    "pokemon senor",
    "“naïve” — café…",
    "naive cafe",
    "Łódź Đà Nẵng",
    "lodz da nang",
    "Москва Ελλάδα",
    "moskva ellada",
    "½ of it",
    "12 of it",
]
LETTERS = [
    "",
    "A",
    "(B)",
    "b",
    "BC",
    "A_",
    "the answer is C, not D",
    "A dog. B",
    "D.",
    "éA B",
    "1A A",
    "E or D",
]
STATED = [
    "",
    "The correct answer is (B)",
    "The correct answer is B",
    "the correct answer is (B)",
    "The correct answer is (B).",
    "The correct answer is **(B)**.",
    "**The correct answer is B**",
    "The correct answer is (b)",
    "The correct answer is (BC)",
    "The correct answer is (E) or B",
    "The correct answer is Boston",
    "The correct answer is A. No: The correct answer is (B).",
    "The correct answer is (A). The correct answer is (B).",
    "The correct answer is  (B)",
    "The correct answer is\n(B)",
    "The correct answer is (insert answer here): The correct answer is (B)",
    "The correct answer is: (B)",
    "B",
]
PERCENTAGES = [
    "",
    "40%",
    "about 60 %",
    "It is 62.5%, not 40%",
    "40",
    "-40%",
    "1.2.3%",
    ".5%",
    "7.%",
    "100%",
    "% 30%",
    "a% 30%",
    "250%",
    "40,5%",
]
ORDERS = [
    "",
    "1, 2, 3, 4",
    "4, 3, 2, 1",
    "2, 1, 4, 3",
    "1 2 3 4",
    "1,2,3,4.",
    "[3, 1, 2, 4]",
    "Summaries 3, 4, 1, 2",
    "1, 2, 3",
    "1, 2, 3, 4, 5",
    "1, 1, 2, 3",
    "0, 1, 2, 3",
    "1.2, 3, 4",
    "1, 2, 3,\n4",
    "one",
    "2, 1",
    "1, 2",
]
STEMS = [
    "re",
    "oper",
    "hop",
    "hopp",
    "fil",
    "fall",
    "tann",
    "siz",
    "confl",
    "troubl",
    "agr",
    "y",
    "by",
    "enj",
    "happ",
    "cr",
    "sp",
    "fl",
    "d",
    "vil",
    "form",
    "triplic",
    "relat",
    "radic",
    "sens",
    "theo",
    "geo",
    "art",
    "contr",
    "roll",
    "adopt",
    "1990",
    "syzyg",
    "play",
    "o",
    "ai",
    "box",
    "homolog",
    "tr",
    "ll",
    "hiss",
    "w",
    "yy",
    "ayy",
]
SUFFIXES = [
    "",
    "s",
    "es",
    "ies",
    "sses",
    "ss",
    "ed",
    "eed",
    "ied",
    "ing",
    "ying",
    "y",
    "ay",
    "ational",
    "tional",
    "enci",
    "anci",
    "izer",
    "bli",
    "abli",
    "alli",
    "entli",
    "eli",
    "ousli",
    "ization",
    "ation",
    "ator",
    "alism",
    "iveness",
    "fulness",
    "ousness",
    "aliti",
    "iviti",
    "biliti",
    "fulli",
    "logi",
    "ogi",
    "icate",
    "ative",
    "alize",
    "iciti",
    "ical",
    "ful",
    "ness",
    "al",
    "ance",
    "ence",
    "er",
    "ic",
    "able",
    "ible",
    "ant",
    "ement",
    "ment",
    "ent",
    "ion",
    "sion",
    "tion",
    "ou",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
    "e",
    "ll",
    "lle",
    "ated",
    "bling",
    "izing",
    "edly",
    "ingly",
    "allied",
]
WORDS = [
    "skies",
    "dying",
    "lying",
    "tying",
    "news",
    "innings",
    "inning",
    "outings",
    "outing",
    "cannings",
    "canning",
    "howe",
    "proceed",
    "exceed",
    "succeed",
    "proceeding",
    "feed",
    "agreed",
    "plastered",
    "bled",
    "motoring",
    "sing",
    "died",
    "dies",
    "lies",
    "spied",
    "generalizations",
    "oscillators",
    "enjoyment",
    "spy",
    "spying",
    "geology",
    "archaeology",
    "probate",
    "rate",
    "cease",
    "controll",
    "controlling",
    "yes",
    "eying",
    "oxen",
    "used",
    "uses",
    "using",
    "abed",
]


def score_names(answer, names):
    """Computes InfiniteBench's score of longdialogue_qa_eng since its issue 18 of August 2024.

    The earlier score compared words with the first name alone, so names of two words never matched.
    """
    answer = answer.strip().upper()
    return any(name.upper() in answer for name in names)


def main(folder):
    sys.path.insert(0, folder)
    import babilong_metrics
    import infinitebench_scores as infinitebench
    import longbench_v2_pred
    import longbench_metrics
    import loogle_metrics as loogle
    import math_equivalence
    import ruler_constants
    import zero_scrolls_metrics as zero_scrolls

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
    for found, right in same + [(a, b) for a in MATH for b in drawn.sample(MATH, 2)]:
        # A box without a closing brace is no box.
        answer = f"So it is \\boxed{{{found}}}."
        add("boxed", answer, [right], math_equivalence.is_equiv(found, right))

    drawn = random.Random(1)
    warnings.simplefilter("ignore")  # BLEU warns about scores of 0.
    kinds = {
        "rouge1": "rouge-score-1",
        "rouge2": "rouge-score-2",
        "rougeL": "rouge-score-l",
        "rougeLsum": "rouge-score-lsum",
    }
    plain = rouge_scorer.RougeScorer(list(kinds))
    stemmed = rouge_scorer.RougeScorer(["rougeLsum"], use_stemmer=True)
    for place, answer in enumerate(SUMMARIES):
        for right in (SUMMARIES[place ^ 1], SUMMARIES[place - 1]):
            for kind, score in plain.score(right, answer).items():
                add(kinds[kind], answer, [right], score.fmeasure)
            add(
                "rouge-score-lsum-stemmed",
                answer,
                [right],
                stemmed.score(right, answer)["rougeLsum"].fmeasure,
            )
    for answer, right in pairs[::2] + TIES:
        for metric, score in zip(
            ("bleu-1", "bleu-4"), loogle.get_bleu_score("", right, answer, "")
        ):
            add(metric, answer, [right], score)
        try:
            for metric, score in zip(
                ("rouge-1-recall", "rouge-2-recall", "rouge-recall"),
                loogle.get_rouge_score("", right, answer, ""),
            ):
                add(metric, answer, [right], score)
        except ValueError:
            pass  # The package refuses texts without a sentence.
    for answer in CLOZES:
        for metric, score in (
            ("cloze-exact", loogle.get_exact_match),
            ("cloze-partial", loogle.get_partial_match),
        ):
            right, total = score("", MASKS, answer, "")
            add(metric, answer, list(MASKS.values()), right / total, MASKS)
    for answer in DIGITS:
        add(
            "first-number",
            answer,
            ["71432"],
            infinitebench.get_score_one_passkey(answer, ["71432"], ""),
        )
        for right in (3, 71432, 3.5, 3.0):
            try:
                add(
                    "first-value",
                    answer,
                    [json.dumps(right)],
                    infinitebench.get_score_one_math_find(answer, [right], ""),
                )
            except ValueError:
                pass  # The reference implementation fails in int("3.5").
    for answer in KEYS:
        add(
            "has-word",
            answer,
            ["ab-12"],
            infinitebench.get_score_one_kv_retrieval(answer, "ab-12", ""),
        )
    for answer in NAMES:
        for right in RIGHT_NAMES:
            add("has-name", answer, right, score_names(answer, right))
    for answer in RUNS:
        for right in (4, -4, 1000, 0):
            add(
                "last-number",
                answer,
                [str(right)],
                infinitebench.get_score_one_code_run(answer, [right], ""),
            )
    for answer in CHOICES:
        for option in OPTIONS:
            add(
                "choice",
                answer,
                [option, "B"],
                infinitebench.get_score_one_longbook_choice_eng(answer, [option, "B"], ""),
            )
        add(
            "code-choice",
            answer,
            [OPTIONS[1], "B"],
            infinitebench.get_score_one_code_debug(answer, [OPTIONS[1], "B"], ""),
        )
    for answer in SERIES:
        for right in VALUES:
            add(
                "leading-numbers",
                answer,
                [str(number) for number in right],
                infinitebench.get_score_one_math_calc(answer, right, ""),
            )
    for answer in CHINESE:
        for right in [*drawn.sample(CHINESE, 3), answer]:
            add("character-f1", answer, [right], infinitebench.qa_f1_score_zh(answer, [right]))
    for answer, right in pairs:
        assert infinitebench.qa_f1_score(answer, [right]) == longbench_metrics.qa_f1_score(
            answer, right
        )

    drawn_words = drawn
    drawn = random.Random(2)
    for answer in STATED:
        add("stated-letter", answer, ["B"], longbench_v2_pred.extract_answer(answer) == "B")
    for answer in LETTERS:
        for right in ("A", "(B) the bell", "C", "D"):
            add("first-letter", answer, [right], zero_scrolls.accuracy_score(answer, right))
    for answer, right in pairs[::2] + [(a, b) for a in FOREIGN for b in FOREIGN]:
        if not answer.isascii() and any(character in answer for character in "日"):
            continue  # The package and the crate transliterate ideographs differently.
        add("ascii-word-f1", answer, [right], zero_scrolls.f1_score(answer, right))
    for answer in PERCENTAGES:
        for right in ("40%", "62.5%", "0%"):
            score = zero_scrolls.exp_similarity_score(answer, right)
            add("percentage-similarity", answer, [right], score)
    for answer in ORDERS:
        for right in ("1, 2, 3, 4", "3, 1, 4, 2", "2, 1"):
            score = zero_scrolls.concordant_index_score(answer, right)
            add("concordance", answer, [right], score)
    for answer in SUMMARIES:
        rights = drawn.sample(SUMMARIES, 2)
        scores = [plain.score(right, answer) for right in rights]
        best = [max(score[kind].fmeasure for score in scores) for kind in list(kinds)[:3]]
        add("rouge-geometric-mean", answer, rights, math.prod(best) ** (1 / 3))

    drawn = drawn_words
    words = [stem + suffix for stem in STEMS for suffix in SUFFIXES]
    words = WORDS + drawn.sample([word for word in words if len(word) > 3], 900)
    stemmer = PorterStemmer()
    stems = "".join(f"{word} {stemmer.stem(word)}\n" for word in words)

    rows = [
        {
            "input": "Who lit the lamp?",
            "context": context,
            "answers": ["Ann", "the keeper"],
            "length": length,
            "dataset": "qasper",
            "language": "en",
            "all_classes": None,
            "_id": "1",
        }
        for context, length in (("Ann kept the light.", 6), ("Über 日本", 7))
    ]
    path = Path(__file__).parents[1] / "lab/tasks/tests/golden/metrics.json"
    path.parent.mkdir(exist_ok=True)
    path.with_name("stems.txt").write_text(stems)
    lines = (json.dumps(case, ensure_ascii=True) for case in cases)
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    columns = pyarrow.schema(
        [
            ("input", pyarrow.string()),
            ("context", pyarrow.string()),
            ("answers", pyarrow.list_(pyarrow.string())),
            ("length", pyarrow.int32()),
            ("dataset", pyarrow.string()),
            ("language", pyarrow.string()),
            ("all_classes", pyarrow.list_(pyarrow.string())),
            ("_id", pyarrow.string()),
        ]
    )
    for name, compression in (
        ("rows", "snappy"),
        ("rows-zstd", "zstd"),
        ("rows-gzip", "gzip"),
        ("rows-lz4", "lz4"),
    ):
        table = pyarrow.Table.from_pylist(rows, columns)
        parquet.write_table(table, path.with_name(f"{name}.parquet"), compression=compression)
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main(sys.argv[1])
