"""Questions about a text of a few statements, answered with a sentence of that text or not at
all.
"""

from __future__ import annotations

from random import Random

from examples.pie_tiny.corpus.sample import Sample, Split, chat
from examples.pie_tiny.corpus.words import ANIMALS, COLOURS, PEOPLE, PLACES, THINGS, invented

KIND = "qa"
UNKNOWN = "The text does not say."

# Of each property: the statement, the question for the value and the one for the person.
_PROPERTIES: dict[str, tuple[str, str, str]] = {
    "home": ("{s} lives in {v}.", "Where does {s} live?", "Who lives in {v}?"),
    "age": ("{s} is {v} years old.", "How old is {s}?", "Who is {v} years old?"),
    "pet": ("{s} has a pet {v}.", "What pet does {s} have?", "Who has a pet {v}?"),
    "colour": (
        "{s} likes the colour {v}.",
        "What colour does {s} like?",
        "Who likes the colour {v}?",
    ),
    "thing": ("{s} owns the {v}.", "What does {s} own?", "Who owns the {v}?"),
    "friend": ("{s} is a friend of {v}.", "Whose friend is {s}?", "Who is a friend of {v}?"),
}
_NAMES = tuple(_PROPERTIES)
_PROMPTS = ("{text}\n{question}", "Text: {text}\nQuestion: {question}", "{text}\n\n{question}")


def questions(random: Random, split: Split) -> Sample:
    """A text of two to six statements about people, a question about one, and the answer.

    No two statements share a person and a property, nor a property and a value, so the answer is
    one statement of the text, word for word. A tenth of the questions has no answer in the text,
    which asks for a property that it tells of another person or not at all.
    """
    count = 2 + int(random.random() * 5)
    people = _people(random, split, 2 + int(random.random() * 3))
    told: dict[tuple[str, str], str] = {}
    values: set[str] = set(people)
    while len(told) < count:
        key = random.choice(people), random.choice(_NAMES)
        if key in told:
            continue
        value = _value(random, split, key[1])
        if value not in values:
            values.add(value)
            told[key] = value
    statements = [
        _PROPERTIES[name][0].format(s=person, v=value) for (person, name), value in told.items()
    ]
    if random.random() < 0.1:
        person, name = _untold(random, people, told)
        question, reply = _PROPERTIES[name][1].format(s=person), UNKNOWN
    else:
        chosen = int(random.random() * count)
        (person, name), value = list(told.items())[chosen]
        question = _PROPERTIES[name][1 + (random.random() < 0.35)].format(s=person, v=value)
        reply = statements[chosen]
    text = " ".join(statements)
    return chat(KIND, "", random.choice(_PROMPTS).format(text=text, question=question), reply)


def _people(random: Random, split: Split, count: int) -> list[str]:
    people: list[str] = []
    while len(people) < count:
        name = _name(random, split, PEOPLE)
        if name not in people:
            people.append(name)
    return people


def _name(random: Random, split: Split, known: list[str]) -> str:
    """A known name or a made-up one; in held-out samples always a made-up one that was kept
    back.
    """
    if split.held_out or random.random() < 0.5:
        return invented(random, split).capitalize()
    return random.choice(known)


def _value(random: Random, split: Split, name: str) -> str:
    if name == "home":
        return _name(random, split, PLACES)
    if name == "age":
        return str(5 + int(random.random() * 90))
    if name == "pet":
        return random.choice(ANIMALS)
    if name == "colour":
        return random.choice(COLOURS)
    if name == "thing":
        return f"{random.choice(COLOURS)} {random.choice(THINGS)}"
    return _name(random, split, PEOPLE)


def _untold(random: Random, people: list[str], told: dict[tuple[str, str], str]) -> tuple[str, str]:
    """A person of the text with a property it does not tell of them."""
    return random.choice(
        [(person, name) for person in people for name in _NAMES if (person, name) not in told]
    )
