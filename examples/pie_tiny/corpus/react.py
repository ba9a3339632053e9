"""Traces of thought, action and observation (ReAct), written as text with the observations
given.
"""

from __future__ import annotations

from random import Random

from examples.pie_tiny.corpus.sample import BEGIN, END, Piece, Sample, Split, turn
from examples.pie_tiny.corpus.words import ANIMALS, COLOURS, PEOPLE, PLACES, invented

KIND = "react"
SYSTEM = (
    "Answer with thoughts and actions.\n"
    "lookup(name, property): one property of a person\n"
    "search(text): the name of the person of whom the text is true\n"
    "add(a, b): the sum of two numbers"
)
UNKNOWN = "unknown"

# Properties whose value is a person, so that a question can go on from there.
_RELATIONS = ("friend", "teacher", "sister", "brother", "boss", "neighbour", "doctor")
# Properties that end a question, each with its phrasing for a person `{x}`.
_ASKED: dict[str, str] = {
    "city": "Where does {x} live?",
    "age": "How old is {x}?",
    "pet": "What pet does {x} have?",
    "job": "What is the job of {x}?",
    "colour": "What colour does {x} like?",
}
# The argument of `search` about a person, and how a question says the same.
_TRUE_OF: tuple[tuple[str, str], ...] = (
    ("lives in {v}", "city"),
    ("is a {v}", "job"),
    ("has a pet {v}", "pet"),
    ("likes {v}", "colour"),
)
_JOBS = tuple("baker teacher doctor farmer painter singer pilot cook nurse judge".split())

# A thought, the action it leads to and what is observed.
Step = tuple[str, str, str]


def react(random: Random, split: Split) -> Sample:
    """A question that takes one to three actions, with all of them and the answer.

    Every action follows from the question and the observations before it: the properties of a chain
    are looked up from the innermost outwards. Observations are given, not learnt. In one trace of
    twenty an action finds nothing, and the answer is `unknown`.
    """
    drawn = random.random()
    if drawn < 0.55:
        question, steps = _chain(random, split)
    elif drawn < 0.8:
        question, steps = _searched(random, split)
    else:
        question, steps = _sum(random, split)
    if random.random() < 0.05:
        steps = steps[: 1 + int(random.random() * len(steps))]
        thought, action, _ = steps[-1]
        steps[-1] = thought, action, "nothing found"
        value = UNKNOWN
        last = "Thought: I cannot find it.\n"
    else:
        value = steps[-1][2]
        last = "Thought: I know the answer.\n"
    given = BEGIN + turn("system", SYSTEM) + turn("user", question) + "<|assistant|>\n"
    pieces = [Piece(given, False)]
    for thought, action, observation in steps:
        pieces.append(Piece(f"Thought: {thought}\nAction: {action}\n", True))
        pieces.append(Piece(f"Observation: {observation}\n", False))
    pieces.append(Piece(f"{last}Answer: {value}{END}", True))
    return Sample(KIND, tuple(pieces))


def _chain(random: Random, split: Split) -> tuple[str, list[Step]]:
    """`Where does the friend of the boss of Mira live?`"""
    person = _name(random, split)
    relations = random.sample(_RELATIONS, int(random.random() * 3))
    phrase = person
    for relation in relations:
        phrase = f"the {relation} of {phrase}"
    if relations and random.random() < 0.15:
        return f"Who is {phrase}?", _lookups(random, split, person, relations)
    asked = random.choice(tuple(_ASKED))
    return _ASKED[asked].format(x=phrase), _lookups(random, split, person, [*relations, asked])


def _searched(random: Random, split: Split) -> tuple[str, list[Step]]:
    """`Who is the friend of the person who lives in Dorn?`"""
    true_of, known = random.choice(_TRUE_OF)
    text = true_of.format(v=_value(random, split, known))
    person = _name(random, split)
    search: Step = f"I need the person who {text}.", f'search("{text}")', person
    drawn = random.random()
    if drawn < 0.3:
        return f"Who {text}?", [search]
    if drawn < 0.6:
        relation = random.choice(_RELATIONS)
        steps = _lookups(random, split, person, [relation])
        return f"Who is the {relation} of the person who {text}?", [search, *steps]
    asked = random.choice([name for name in _ASKED if name != known])
    question = _ASKED[asked].format(x=f"the person who {text}")
    return question, [search, *_lookups(random, split, person, [asked])]


def _sum(random: Random, split: Split) -> tuple[str, list[Step]]:
    """`How old are Mira and Tobin together?`"""
    first, second = _name(random, split), _name(random, split)
    while second == first:
        second = _name(random, split)
    (one,) = _lookups(random, split, first, ["age"])
    (two,) = _lookups(random, split, second, ["age"])
    a, b = int(one[2]), int(two[2])
    added: Step = f"I add {a} and {b}.", f"add({a}, {b})", str(a + b)
    return f"How old are {first} and {second} together?", [one, two, added]


def _lookups(random: Random, split: Split, person: str, properties: list[str]) -> list[Step]:
    steps: list[Step] = []
    met = {person}
    for name in properties:
        value = _value(random, split, name)
        while value in met:
            value = _value(random, split, name)
        met.add(value)
        steps.append((f"I need the {name} of {person}.", f'lookup("{person}", "{name}")', value))
        person = value
    return steps


def _name(random: Random, split: Split) -> str:
    """A person: a made-up name, or in training sometimes a known one."""
    if not split.held_out and random.random() < 0.5:
        return random.choice(PEOPLE)
    return invented(random, split).capitalize()


def _value(random: Random, split: Split, name: str) -> str:
    if name in _RELATIONS:
        return _name(random, split)
    if name == "age":
        return str(5 + int(random.random() * 90))
    if name == "pet":
        return random.choice(ANIMALS)
    if name == "job":
        return random.choice(_JOBS)
    if name == "colour":
        return random.choice(COLOURS)
    if not split.held_out and random.random() < 0.5:
        return random.choice(PLACES)
    return invented(random, split).capitalize()
