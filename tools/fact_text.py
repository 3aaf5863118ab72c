"""Text with many facts among prose, and questions about them at its end.

Hash maps learn from it to find a token by what precedes it, which prose seldom requires.
"""

import random

THINGS = "door gate locker vault cabin garage cellar workshop library archive hangar depot".split()
NAMES = (
    "Alice Boris Carmen David Elena Farid Greta Hugo Irene Jakob Karin Liam Maria Noah Olga Pavel "
    "Quentin Rosa Stefan Tanja Ulrich Vera Walter Xenia Yusuf Zoe"
).split()
SURNAMES = "Adler Berger Costa Dubois Ericson Fischer Novak Rossi".split()
CITIES = (
    "Lisbon Oslo Prague Vienna Dublin Athens Madrid Warsaw Geneva Zurich Turin Porto Bergen Krakow"
).split()
COLOURS = "red blue green yellow purple orange white black silver golden brown pink".split()
OBJECTS = (
    "umbrella bicycle notebook lamp kettle jacket telescope violin suitcase mirror basket helmet"
).split()

# Number of facts, and the largest number of sentences of prose after each.
FACTS = 76
PROSE = 3


class Draw:
    """Random choices that are the same in all versions of Python."""

    def __init__(self, seed: int):
        self.random = random.Random(seed).random

    def number(self, below: int) -> int:
        return int(self.random() * below)

    def one_of(self, items: list[str]) -> str:
        return items[self.number(len(items))]

    def shuffle(self, items: list) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = self.number(i + 1)
            items[i], items[j] = items[j], items[i]


def draw_fact(draw: Draw) -> tuple[str, str]:
    """Returns a question, and a sentence that answers it."""
    one = draw.one_of
    thing, thing_of_owner = (f"{one(COLOURS)} {one(kind)}" for kind in (THINGS, OBJECTS))
    person, city = f"{one(NAMES)} {one(SURNAMES)}", one(CITIES)
    year, digits = 1980 + draw.number(44), str(1000 + draw.number(10 ** (4 + draw.number(4))))
    facts = [
        (
            f"What is the access code of the {thing}?",
            f"The access code of the {thing} is {digits}.",
        ),
        (f"What is the phone number of {person}?", f"The phone number of {person} is {digits}."),
        (
            f"What was the price of the room in {city} in {year}?",
            f"In {city} in {year}, the price of the room was {digits} francs.",
        ),
        (
            f"What is the owner of the {thing_of_owner} called?",
            f"The owner of the {thing_of_owner} is called {person}.",
        ),
        (
            f"What is the serial number of the {thing_of_owner}?",
            f"The serial number of the {thing_of_owner} is {one(list('ABCDEFGH'))}-{digits}.",
        ),
        (f"Where does {person} live?", f"{person} lives in {city}."),
    ]
    return facts[draw.number(len(facts))]


def make_fact_text(prose: list[str], seed: int = 1) -> str:
    """Returns facts among sentences of the texts of `prose`, then each question with its answer."""
    draw = Draw(seed)
    sentences = [
        " ".join(sentence.split()) + "."
        for text in prose
        for sentence in text.split(". ")
        if 40 < len(sentence) < 240
    ]
    draw.shuffle(sentences)
    facts: dict[str, str] = {}
    while len(facts) < FACTS:
        question, answer = draw_fact(draw)
        facts.setdefault(question, answer)
    parts = []
    for answer in facts.values():
        parts.append(answer)
        parts += [sentences.pop() for _ in range(1 + draw.number(PROSE))]
    questions = list(facts.items())
    draw.shuffle(questions)
    asked = [f"Question: {question}\nAnswer: {answer}\n" for question, answer in questions]
    return "\n".join([" ".join(parts), "", *asked])
