"""Texts of the recall tasks: RULER's needles (niah) and variable tracking (vt).

A text is a list of word numbers, with a list of places whose next word is part of an answer. At
each place, any word of `allowed` is right: the values of several needles may come in any order,
the variables of a chain only in its order.

    tasks    single       one needle in noise sentences              (RULER niah_single_1)
             essay        one needle in random filler                (niah_single_2)
             multikey     one of four needles in random filler       (niah_multikey_1)
             haystack     one of many needles without filler         (niah_multikey_2)
             multivalue   the four values of one key                 (niah_multivalue)
             multiquery   the values of four keys                    (niah_multiquery)
             vt           the variables of a chain of four hops, in noise sentences

Drills are short texts full of questions, for training only:

             drill        "key is: value." again and again
             drill-chain  chains of variables, and many questions about them
             drill-set    keys with several values, and many questions about them

RULER: Hsieh et al., https://arxiv.org/abs/2404.06654. In place of its essays, filler consists of
random words; numbers and keys come from the lists of models/recall/vocabulary.json, as one token
each.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

VOCABULARY = Path(__file__).resolve().parent.parent / "models" / "recall" / "vocabulary.json"
FORMAT = "vattention-recall/1"
TASKS = ["single", "essay", "multikey", "haystack", "multivalue", "multiquery", "vt"]
DRILLS = ["drill", "drill-chain", "drill-set"]
TOKEN = re.compile(r"\w+|[^\w\s]+")
HOLE = re.compile(r"\{(\w+)\}")
VARIABLES_OF_A_CHAIN = 5


class Vocabulary:
    """Words with their numbers, and the templates of sentences."""

    def __init__(self, path=VOCABULARY):
        content = json.loads(Path(path).read_text())
        if content.get("format") != FORMAT:
            raise ValueError(f"{path}: format {content.get('format')!r}; expected {FORMAT!r}")
        self.content = content
        self.words = list(dict.fromkeys(self._all_words()))
        self.number = {word: i for i, word in enumerate(self.words)}
        self.classes = {name: self.numbers(words) for name, words in content["classes"].items()}
        self.noise = [self.encode(sentence) for sentence in content["noise"]]
        self.counts = self.numbers(content["counts"])
        self.end = self.number["."]
        niah, vt = content["templates"]["niah"], content["templates"]["vt"]
        self.kinds = niah["kinds"]
        self.comma, self.last = (
            self.encode(niah["query_list"]["between"]),
            self.encode(niah["query_list"]["last"]),
        )
        self.niah = {
            form: {part: Template(self, niah[form][part]) for part in niah[form]}
            for form in ["one", "several"]
        }
        self.needle = Template(self, niah["needle"])
        self.vt = {part: Template(self, text) for part, text in vt.items()}

    def _all_words(self):
        content = self.content
        yield from content["special"]
        yield from [".", ",", ":", "?", "="]
        niah = content["templates"]["niah"]
        texts = [
            *niah["one"].values(),
            *niah["several"].values(),
            niah["needle"],
            *niah["kinds"],
            *niah["kinds"].values(),
        ]
        texts += [
            *niah["query_list"].values(),
            *content["templates"]["vt"].values(),
            *content["noise"],
        ]
        for text in texts:
            yield from TOKEN.findall(HOLE.sub(" ", text))
        yield from content["counts"]
        for words in content["classes"].values():
            yield from words

    def numbers(self, words):
        return [self.number[word] for word in words]

    def encode(self, text):
        return self.numbers(TOKEN.findall(text))

    def decode(self, numbers):
        return " ".join(self.words[i] for i in numbers)


class Template:
    """Sentence with holes, into which `fill` inserts lists of word numbers."""

    def __init__(self, vocabulary, text):
        pieces = HOLE.split(text)
        self.fixed = [vocabulary.encode(piece) for piece in pieces[::2]]
        self.holes = pieces[1::2]

    def fill(self, **values):
        result = list(self.fixed[0])
        for hole, piece in zip(self.holes, self.fixed[1:]):
            result += values[hole]
            result += piece
        return result


@dataclass
class Text:
    """Word numbers, starts of sentences, and places of answers.

    An item of `asked` is a place whose next word belongs to an answer, and the words allowed there.
    """

    words: list
    starts: list = field(default_factory=list)
    asked: list = field(default_factory=list)

    def sentence(self, words):
        self.starts.append(len(self.words))
        self.words += words

    def answer(self, words, in_order, end):
        """Appends an answer, for which another order may be right, and the full stop after it."""
        for i, word in enumerate(words):
            allowed = [word] if in_order else words[i:]
            self.asked.append((len(self.words) - 1, list(allowed)))
            self.words.append(word)
        self.asked.append((len(self.words) - 1, [end]))
        self.words.append(end)


@dataclass
class Question:
    """Question about keys or a value, `query`, and its answer.

    `words` are all words up to the answer, `short` their second half. `in_order` is True if the
    order of the answer counts.
    """

    query: list
    words: list
    short: list
    answer: list
    in_order: bool


def noise(vocabulary, rng):
    """Yields RULER's noise sentences, again and again."""
    while True:
        yield from vocabulary.noise


def essay(vocabulary, rng):
    """Yields sentences of random filler words."""
    while True:
        yield [*rng.choices(vocabulary.classes["filler"], k=rng.randint(4, 14)), vocabulary.end]


def draw_distinct(rng, words, count):
    return rng.sample(words, min(count, len(words)))


def needles(vocabulary, rng, keys, values_each, kind):
    """Returns new keys with their values. The values of a key differ, and all if possible."""
    pool = vocabulary.classes[vocabulary.kinds[kind]]
    values = [
        value
        for _ in range(keys * values_each // len(pool) + 1)
        for value in rng.sample(pool, len(pool))
    ]
    names = draw_distinct(rng, vocabulary.classes["keys"], keys)
    return {key: values[i * values_each :][:values_each] for i, key in enumerate(names)}


def needle_sentences(vocabulary, found, kind):
    kinds = [vocabulary.number[vocabulary.kinds[kind]]]
    fill = lambda key, value: vocabulary.needle.fill(kinds=kinds, key=[key], value=[value])
    return [fill(key, value) for key, values in found.items() for value in values]


def needle_question(vocabulary, found, kind, keys):
    answer = [value for key in keys for value in found[key]]
    form = vocabulary.niah["one" if len(answer) == 1 else "several"]
    names = {
        "kind": [vocabulary.number[kind]],
        "kinds": [vocabulary.number[vocabulary.kinds[kind]]],
    }
    query = [keys[0]]
    for i, key in enumerate(keys[1:], 2):
        query += [*(vocabulary.last if i == len(keys) else vocabulary.comma), key]
    short = form["answer"].fill(query=query, **names)
    return Question(
        query, form["question"].fill(query=query, **names) + short, short, answer, False
    )


def needle_introduction(vocabulary, kind, several):
    names = {
        "kind": [vocabulary.number[kind]],
        "kinds": [vocabulary.number[vocabulary.kinds[kind]]],
    }
    return vocabulary.niah["several" if several else "one"]["introduction"].fill(**names)


def chain(vocabulary, value, variables):
    """Returns a value, its variables, and the sentences of the chain in order."""
    value = [value]
    sentences = [vocabulary.vt["first"].fill(variable=[variables[0]], value=value)]
    for previous, variable in zip(variables, variables[1:]):
        sentences.append(vocabulary.vt["next"].fill(variable=[variable], previous=[previous]))
    return value, variables, sentences


def chain_question(vocabulary, value, variables):
    count = [vocabulary.counts[len(variables) - 1]]
    short = vocabulary.vt["answer"].fill(value=value, count=count)
    return Question(
        value, vocabulary.vt["question"].fill(value=value) + short, short, list(variables), True
    )


def merge(rng, groups):
    """Merges groups of sentences at random; the sentences of a group stay in order."""
    order = [i for i, group in enumerate(groups) for _ in group]
    rng.shuffle(order)
    left = [iter(group) for group in groups]
    return [next(left[i]) for i in order]


def fill_up(rng, sentences, filler, room):
    """Returns `sentences` at random places among filler, in all at most `room` words."""
    room -= sum(map(len, sentences))
    hay = []
    while len(sentence := next(filler)) <= room:
        hay.append(sentence)
        room -= len(sentence)
    return merge(rng, [sentences, hay])


def write_text(vocabulary, rng, introduction, sentences, filler, questions, length, short):
    """Returns a text of at most `length` words; `short` is the share of shortened questions."""
    asked = [(q.short if rng.random() < short else q.words, q) for q in questions]
    tail = sum(len(words) + len(q.answer) + 1 for words, q in asked)
    text = Text([vocabulary.number["<bos>"]])
    text.sentence(introduction)
    for sentence in fill_up(rng, sentences, filler, length - len(text.words) - tail):
        text.sentence(sentence)
    return ask(vocabulary, rng, text, asked)


def drill(vocabulary, rng, length):
    """Returns a text that repeats a few keys with their values; all but the first are questions."""
    kind = rng.choice(list(vocabulary.kinds))
    pool = vocabulary.classes[vocabulary.kinds[kind]]
    keys = draw_distinct(rng, vocabulary.classes["keys"], rng.randint(2, max(3, length // 12)))
    values, seen = {key: rng.choice(pool) for key in keys}, set()
    plain = rng.choice([0, 0.5, 0.8, 1])
    text = Text([vocabulary.number["<bos>"]])
    while True:
        key = rng.choice(keys)
        sentence = state(vocabulary, rng, kind, key, values[key], rng.random() < plain)
        if len(text.words) + len(sentence) > length:
            return text
        text.sentence(sentence)
        if key in seen:
            text.asked.append((len(text.words) - 3, [values[key]]))
        seen.add(key)


def drill_chain(vocabulary, rng, length):
    """Returns chains with little filler, and one question about each, mostly of two words."""
    pool = vocabulary.classes["variables"]
    names, values = (
        iter(rng.sample(pool, len(pool))),
        iter(draw_distinct(rng, vocabulary.classes["assigned"], len(pool))),
    )
    most = rng.choice([1, 1, 2, 3, VARIABLES_OF_A_CHAIN])

    def unit():
        variables = [name for _, name in zip(range(rng.randint(1, most)), names)]
        if not variables:
            return None
        value, variables, sentences = chain(vocabulary, next(values), variables)
        return sentences, chain_question(vocabulary, value, variables)

    return write_drill(vocabulary, rng, length, unit, vocabulary.encode(":"))


def drill_set(vocabulary, rng, length):
    """Returns keys with values, and short questions about the values of one or several keys."""
    kind = rng.choice(list(vocabulary.kinds))
    queried, values_each = rng.choice([(1, 2), (1, 3), (1, 4), (2, 1), (3, 1), (4, 1)])
    count = len(vocabulary.classes["keys"])
    found = iter(needles(vocabulary, rng, count, values_each, kind).items())
    plain = rng.choice([0.5, 1])

    def unit():
        some = dict(pair for _, pair in zip(range(queried), found))
        if len(some) < queried:
            return None
        sentences = [
            state(vocabulary, rng, kind, key, value, rng.random() < plain)
            for key, values in some.items()
            for value in values
        ]
        rng.shuffle(sentences)
        return sentences, needle_question(vocabulary, some, kind, rng.sample(list(some), queried))

    return write_drill(vocabulary, rng, length, unit, vocabulary.encode("are"))


def write_drill(vocabulary, rng, length, unit, ending):
    """Returns a text filled with units: the sentences of all units, then their questions.

    A unit has sentences and a question, which is often reduced to its query and `ending`. There is
    a little filler between the sentences.
    """
    text, filler = Text([vocabulary.number["<bos>"]]), rng.choice([noise, essay])(vocabulary, rng)
    some = rng.choice([0, 0, 0.3])
    whole, groups, asked, room = rng.choice([0, 0, 0.2, 1]), [], [], length - 1
    while drawn := unit():
        sentences, question = drawn
        between = [next(filler) for _ in sentences if rng.random() < some]
        words = question.short if rng.random() < whole else question.query + ending
        room -= sum(map(len, sentences + between)) + len(words) + len(question.answer) + 1
        if room < 0:
            break
        groups += [sentences, *([sentence] for sentence in between)]
        asked.append((words, question))
    for sentence in merge(rng, groups):
        text.sentence(list(sentence))
    rng.shuffle(asked)
    return ask(vocabulary, rng, text, asked)


def ask(vocabulary, rng, text, asked):
    for words, question in asked:
        text.sentence(words)
        answer = list(question.answer)
        if not question.in_order:
            rng.shuffle(answer)
        text.answer(answer, question.in_order, vocabulary.end)
    return text


def state(vocabulary, rng, kind, key, value, plain):
    """Returns a sentence that ends with the value of `key` and a full stop.

    A plain sentence has a few words; others are RULER's.
    """
    if plain:
        between = vocabulary.encode(rng.choice(["is:", "is", ":", ""]))
        return [
            *rng.choices(vocabulary.classes["filler"], k=rng.randint(0, 2)),
            key,
            *between,
            value,
            vocabulary.end,
        ]
    if rng.random() < 0.5:
        return vocabulary.needle.fill(
            kinds=[vocabulary.number[vocabulary.kinds[kind]]], key=[key], value=[value]
        )
    answer = vocabulary.niah["one"]["answer"].fill(kind=[vocabulary.number[kind]], query=[key])
    return [*answer, value, vocabulary.end]


def draw_queries(rng, keys, queried, questions):
    """Draws the keys of each question; keys repeat only after all have been drawn."""
    order = []
    while len(order) < questions * queried:
        again = rng.sample(keys, len(keys))
        order += again[: len(again) // queried * queried]
    return [order[i * queried :][:queried] for i in range(questions)]


def niah(vocabulary, rng, length, keys, values_each, queried, questions, filler, short):
    """Returns needles among filler, and `questions` questions about `queried` keys each."""
    kind = rng.choice(list(vocabulary.kinds))
    found = needles(vocabulary, rng, keys, values_each, kind)
    sentences = needle_sentences(vocabulary, found, kind)
    rng.shuffle(sentences)
    asked = draw_queries(rng, list(found), queried, questions)
    introduction = needle_introduction(vocabulary, kind, queried * values_each > 1)
    questions = [needle_question(vocabulary, found, kind, keys) for keys in asked]
    return write_text(vocabulary, rng, introduction, sentences, filler, questions, length, short)


def vt(vocabulary, rng, length, chains, variables, questions, short):
    names = draw_distinct(rng, vocabulary.classes["variables"], chains * variables)
    values = draw_distinct(rng, vocabulary.classes["assigned"], chains)
    parts = [
        chain(vocabulary, value, names[i * variables :][:variables])
        for i, value in enumerate(values)
    ]
    sentences = merge(rng, [sentences for _, _, sentences in parts])
    asked = draw_distinct(rng, parts, questions)
    questions = [chain_question(vocabulary, value, variables) for value, variables, _ in asked]
    introduction = vocabulary.vt["introduction"].fill()
    filler = noise(vocabulary, rng)
    return write_text(vocabulary, rng, introduction, sentences, filler, questions, length, short)


# Approximate number of words of a needle, and of a question with its answer.
NEEDLE, ASKED = 13, 30


def test_text(vocabulary, rng, task, length):
    """Returns a text with one question at its end, as in RULER."""
    some = {"questions": 1, "short": 0}
    hay = lambda make: make(vocabulary, rng)
    if task == "vt":
        return vt(vocabulary, rng, length, 1, VARIABLES_OF_A_CHAIN, **some)
    if task == "haystack":
        keys = min((length - 3 * ASKED) // NEEDLE, len(vocabulary.classes["keys"]))
        return niah(vocabulary, rng, length, keys, 1, 1, filler=hay(essay), **some)
    keys, values, queried = {
        "multikey": (4, 1, 1),
        "multivalue": (1, 4, 1),
        "multiquery": (4, 1, 4),
    }.get(task, (1, 1, 1))
    return niah(
        vocabulary,
        rng,
        length,
        keys,
        values,
        queried,
        filler=hay(noise if task == "single" else essay),
        **some,
    )


def training_text(vocabulary, rng, task, length):
    """Returns a text of a task for training, with many needles and questions."""
    drills = dict(zip(DRILLS, [drill, drill_chain, drill_set]))
    if task in drills:
        return drills[task](vocabulary, rng, length)
    if rng.random() < 0.1 and length >= 256:
        return test_text(vocabulary, rng, task, length)
    short = rng.choice([0, 0.5, 1]) if length < 512 else rng.choice([0, 0.5])
    hay = rng.choice([noise, essay])(vocabulary, rng)
    # Words of an answer, for `multiquery` with those of the keys, which the question repeats.
    answers = {"multivalue": 5, "multiquery": 10}.get(task, 1)
    most = max(1, (length - 40) // 2 // (ASKED + answers + 5))
    questions = rng.randint(max(1, most // 2), most)
    room = length - 40 - questions * (ASKED + 2 * answers)
    if task == "vt":
        variables = rng.choice([2, 3, 4, 5]) if length < 192 else VARIABLES_OF_A_CHAIN
        questions = max(1, (length - 30) // 2 // 50)
        chains = max(
            1,
            min(
                (length - 30 - 55 * questions) // (7 * variables),
                rng.randint(questions, 2 * questions),
                40,
            ),
        )
        return vt(vocabulary, rng, length, chains, variables, questions, short)
    if task == "multivalue":
        values = rng.choice([2, 3, 4]) if length >= 192 else rng.choice([2, 3])
        keys = max(1, min(room // (NEEDLE * values), rng.randint(1, 32)))
        questions = min(questions, 2 * keys)
        return niah(vocabulary, rng, length, keys, values, 1, questions, hay, short)
    if task == "multiquery":
        keys = max(2, min(room // NEEDLE, rng.randint(2, 48)))
        queried = min(keys, rng.choice([2, 3, 4]) if length >= 192 else 2)
        return niah(vocabulary, rng, length, keys, 1, queried, questions, hay, short)
    keys = max(1, room // NEEDLE)
    if task != "haystack":
        keys = min(keys, rng.randint(2, 64))
    return niah(
        vocabulary,
        rng,
        length,
        min(keys, len(vocabulary.classes["keys"])),
        1,
        1,
        questions,
        hay,
        short,
    )
