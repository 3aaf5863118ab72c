"""The texts of the recall tasks: RULER's needles (niah) and variable tracking (vt), of the words of a small vocabulary.

A text is a list of word numbers. What is asked of it is a list of questions, each a list of answer words: at each, any of
`allowed` is right (several needles may be told in any order; variables go along the chain).

    tasks    single       one needle in noise sentences              (RULER niah_single_1)
             essay        one needle in random filler                (niah_single_2)
             multikey     one of four needles in random filler       (niah_multikey_1)
             haystack     one of many needles, nothing else          (niah_multikey_2)
             multivalue   the four values of one key                 (niah_multivalue)
             multiquery   the values of four keys                    (niah_multiquery)
             vt           the variables of a chain of four hops, in noise sentences

Only for training, short and full of questions:

             drill        "key is: value." over and over
             drill-chain  chains, and their variables over and over
             drill-set    keys with several values, and the values of some over and over

RULER: Hsieh et al., https://arxiv.org/abs/2404.06654. Its essays are not used: filler is words drawn at random, and numbers
and keys come from the lists of models/recall/vocabulary.json, one token each.
"""

import json
import random
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
    """Words and their numbers, and the templates as lists of numbers with holes."""

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
    """A sentence with holes: `fill` puts lists of word numbers there."""

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
    """Word numbers, where sentences start, and the places whose next word is asked for, with what is right there."""

    words: list
    starts: list = field(default_factory=list)
    asked: list = field(default_factory=list)

    def sentence(self, words):
        self.starts.append(len(self.words))
        self.words += words

    def answer(self, words, in_order, end):
        """Append an answer, in its order or in any, and the full stop after it."""
        for i, word in enumerate(words):
            allowed = [word] if in_order else words[i:]
            self.asked.append((len(self.words) - 1, list(allowed)))
            self.words.append(word)
        self.asked.append((len(self.words) - 1, [end]))
        self.words.append(end)


@dataclass
class Question:
    """What is asked for; the words up to the answer, all or the second half; the answer, and whether its order counts."""

    query: list
    words: list
    short: list
    answer: list
    in_order: bool


def noise(vocabulary, rng):
    """RULER's noise sentences, over and over."""
    while True:
        yield from vocabulary.noise


def essay(vocabulary, rng):
    """Sentences of random filler words."""
    while True:
        yield [*rng.choices(vocabulary.classes["filler"], k=rng.randint(4, 14)), vocabulary.end]


def distinct(rng, words, count):
    return rng.sample(words, min(count, len(words)))


def needles(vocabulary, rng, keys, values_each, kind):
    """{key: values} for new keys: all values differ if there are so many, and those of a key do."""
    pool = vocabulary.classes[vocabulary.kinds[kind]]
    values = [
        value
        for _ in range(keys * values_each // len(pool) + 1)
        for value in rng.sample(pool, len(pool))
    ]
    names = distinct(rng, vocabulary.classes["keys"], keys)
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
    """(value, its variables, the sentences of the chain in order)."""
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


def merged(rng, groups):
    """The sentences of all groups at random places, those of a group in their order."""
    order = [i for i, group in enumerate(groups) for _ in group]
    rng.shuffle(order)
    left = [iter(group) for group in groups]
    return [next(left[i]) for i in order]


def fill_up(rng, sentences, filler, room):
    """`sentences` at random places among filler, at most `room` words in all."""
    room -= sum(map(len, sentences))
    hay = []
    while len(sentence := next(filler)) <= room:
        hay.append(sentence)
        room -= len(sentence)
    return merged(rng, [sentences, hay])


def written(vocabulary, rng, introduction, sentences, filler, questions, length, short):
    """The whole text. Questions come as many as there are; `short` is the share of those without their first half."""
    asked = [(q.short if rng.random() < short else q.words, q) for q in questions]
    tail = sum(len(words) + len(q.answer) + 1 for words, q in asked)
    text = Text([vocabulary.number["<bos>"]])
    text.sentence(introduction)
    for sentence in fill_up(rng, sentences, filler, length - len(text.words) - tail):
        text.sentence(sentence)
    return ask(vocabulary, rng, text, asked)


def drill(vocabulary, rng, length):
    """Keys of a few, told again and again with the same value: asked at every telling but the first."""
    kind = rng.choice(list(vocabulary.kinds))
    pool = vocabulary.classes[vocabulary.kinds[kind]]
    keys = distinct(rng, vocabulary.classes["keys"], rng.randint(2, max(3, length // 12)))
    told, seen = {key: rng.choice(pool) for key in keys}, set()
    plain = rng.choice([0, 0.5, 0.8, 1])
    text = Text([vocabulary.number["<bos>"]])
    while True:
        key = rng.choice(keys)
        sentence = telling(vocabulary, rng, kind, key, told[key], rng.random() < plain)
        if len(text.words) + len(sentence) > length:
            return text
        text.sentence(sentence)
        if key in seen:
            text.asked.append((len(text.words) - 3, [told[key]]))
        seen.add(key)


def drill_chain(vocabulary, rng, length):
    """Chains with little between them, then each asked for once, mostly in two words."""
    pool = vocabulary.classes["variables"]
    names, values = (
        iter(rng.sample(pool, len(pool))),
        iter(distinct(rng, vocabulary.classes["assigned"], len(pool))),
    )
    most = rng.choice([1, 1, 2, 3, VARIABLES_OF_A_CHAIN])

    def unit():
        variables = [name for _, name in zip(range(rng.randint(1, most)), names)]
        if not variables:
            return None
        value, variables, sentences = chain(vocabulary, next(values), variables)
        return sentences, chain_question(vocabulary, value, variables)

    return drilled(vocabulary, rng, length, unit, vocabulary.encode(":"))


def drill_set(vocabulary, rng, length):
    """Keys with values, then the values of each asked for once, or of several at once, mostly in few words."""
    kind = rng.choice(list(vocabulary.kinds))
    queried, each = rng.choice([(1, 2), (1, 3), (1, 4), (2, 1), (3, 1), (4, 1)])
    found = iter(needles(vocabulary, rng, len(vocabulary.classes["keys"]), each, kind).items())
    plain = rng.choice([0.5, 1])

    def unit():
        some = dict(pair for _, pair in zip(range(queried), found))
        if len(some) < queried:
            return None
        tell = lambda key, value: telling(vocabulary, rng, kind, key, value, rng.random() < plain)
        sentences = [tell(key, value) for key, values in some.items() for value in values]
        rng.shuffle(sentences)
        return sentences, needle_question(vocabulary, some, kind, rng.sample(list(some), queried))

    return drilled(vocabulary, rng, length, unit, vocabulary.encode("are"))


def drilled(vocabulary, rng, length, unit, ending):
    """Units, sentences and a question each, while there is room: all sentences, with a little filler, then all questions.

    Of a question often only what is asked for and `ending` is there.
    """
    text, filler = Text([vocabulary.number["<bos>"]]), rng.choice([noise, essay])(vocabulary, rng)
    some = rng.choice([0, 0, 0.3])
    whole, told, asked, room = rng.choice([0, 0, 0.2, 1]), [], [], length - 1
    while made := unit():
        sentences, question = made
        between = [next(filler) for _ in sentences if rng.random() < some]
        words = question.short if rng.random() < whole else question.query + ending
        room -= sum(map(len, sentences + between)) + len(words) + len(question.answer) + 1
        if room < 0:
            break
        told += [sentences, *([sentence] for sentence in between)]
        asked.append((words, question))
    for sentence in merged(rng, told):
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


def telling(vocabulary, rng, kind, key, value, plain):
    """A sentence that ends in `key`'s value and a full stop: a few words, or one of RULER's."""
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


def asked_keys(rng, keys, queried, questions):
    """Keys for each question, the same again only once all were asked for."""
    order = []
    while len(order) < questions * queried:
        again = rng.sample(keys, len(keys))
        order += again[: len(again) // queried * queried]
    return [order[i * queried :][:queried] for i in range(questions)]


def niah(vocabulary, rng, length, keys, values_each, queried, questions, filler, short):
    """Needles among filler. `questions` ask for `queried` keys each."""
    kind = rng.choice(list(vocabulary.kinds))
    found = needles(vocabulary, rng, keys, values_each, kind)
    sentences = needle_sentences(vocabulary, found, kind)
    rng.shuffle(sentences)
    asked = asked_keys(rng, list(found), queried, questions)
    introduction = needle_introduction(vocabulary, kind, queried * values_each > 1)
    questions = [needle_question(vocabulary, found, kind, keys) for keys in asked]
    return written(vocabulary, rng, introduction, sentences, filler, questions, length, short)


def vt(vocabulary, rng, length, chains, variables, questions, short):
    names = distinct(rng, vocabulary.classes["variables"], chains * variables)
    values = distinct(rng, vocabulary.classes["assigned"], chains)
    made = [
        chain(vocabulary, value, names[i * variables :][:variables])
        for i, value in enumerate(values)
    ]
    sentences = merged(rng, [sentences for _, _, sentences in made])
    asked = distinct(rng, made, questions)
    questions = [chain_question(vocabulary, value, variables) for value, variables, _ in asked]
    introduction = vocabulary.vt["introduction"].fill()
    return written(
        vocabulary, rng, introduction, sentences, noise(vocabulary, rng), questions, length, short
    )


NEEDLE, ASKED = 13, 30  # Words of a needle, and of a question with its answer: about.


def test_text(vocabulary, rng, task, length):
    """A text with one question at its end, as RULER asks it."""
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
    """A text of a task with as many needles and questions as make it teach much."""
    drills = dict(zip(DRILLS, [drill, drill_chain, drill_set]))
    if task in drills:
        return drills[task](vocabulary, rng, length)
    if rng.random() < 0.1 and length >= 256:
        return test_text(vocabulary, rng, task, length)
    short = rng.choice([0, 0.5, 1]) if length < 512 else rng.choice([0, 0.5])
    hay = rng.choice([noise, essay])(vocabulary, rng)
    answers = {"multivalue": 5, "multiquery": 10}.get(
        task, 1
    )  # And the longer list of keys, told twice.
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
