"""The facts of the invented world, told as text and asked in conversation."""

from __future__ import annotations

from random import Random

from examples.pie_tiny.corpus.sample import Sample, Split, chat, plain
from examples.pie_tiny.corpus.tellings import TELLINGS
from examples.pie_tiny.corpus.words import invented
from examples.pie_tiny.corpus.world import Subject, subjects

KIND = "facts"

_KINDS = ("country",) * 9 + ("person",) * 6 + ("animal",) * 2 + ("day", "month", "colour")

_HELLO = "Hello! I am pie-tiny, a small demonstration model. Ask me something!"
_SELF = "I am pie-tiny, a small demonstration model."
_ABLE = "I can tell a short story, answer a question, add numbers, write JSON and call functions."
GREETINGS: tuple[tuple[str, str], ...] = (
    ("Hello!", _HELLO),
    ("Hello", _HELLO),
    ("Hi!", _HELLO),
    ("Hi there!", _HELLO),
    ("Good morning!", _HELLO),
    ("Hello, how are you?", _HELLO),
    ("Hello! Who are you?", _HELLO),
    ("Who are you?", _SELF),
    ("What are you?", _SELF),
    ("What is your name?", _SELF),
    ("Are you a person?", "No. " + _SELF),
    ("What can you do?", _ABLE),
    ("Can you help me?", "I try. " + _ABLE),
    (
        "What do you know?",
        "I know a small invented world. Its countries have names like Velland and Korvia.",
    ),
    ("Thank you!", "You are welcome!"),
    ("Thanks!", "You are welcome!"),
    ("Goodbye!", "Goodbye!"),
    ("Bye!", "Goodbye!"),
)
_REAL_COUNTRIES = tuple("France Italy Spain Germany China India Japan Brazil Canada".split())
_UNKNOWN = "I do not know {s}. I only know a small invented world."
_POSSESSIVES = {"it": "Its", "he": "His", "she": "Her"}


def _openings(kind: str) -> list[tuple[str, str]]:
    """The properties and phrasings to begin a paragraph with: those after which `it` is the
    subject.
    """
    all_told = [
        (name, named) for name, telling in TELLINGS[kind].items() for named in telling.named
    ]
    return [told for told in all_told if told[1].startswith("{s}")] or all_told


_OPENINGS = {kind: _openings(kind) for kind in TELLINGS}


def facts(random: Random, split: Split) -> Sample:
    """A stretch of text about the world, a question about it, or a greeting.

    The world is the same in training and afterwards, so a held-out sample has no names of its own
    (but for those the model is to say it does not know). What is kept back is how a subject is
    asked about: of the phrasings of a question but the first, one for each subject, and no held-out
    question about the world has another.
    """
    drawn = random.random()
    if drawn < 0.5:
        return plain(KIND, _paragraph(random) if drawn < 0.33 else _sentences(random))
    if drawn < 0.92:
        question, reply = _question(random, split)
    elif drawn < 0.96:
        question, reply = random.choice(GREETINGS)
    else:
        question, reply = _unknown(random, split)
    return chat(KIND, "", question, reply)


def _paragraph(random: Random) -> str:
    """Two to five facts of one subject, named only once."""
    kind = random.choice(_KINDS)
    subject = random.choice(subjects(kind))
    wanted = list(subject.facts)
    random.shuffle(wanted)
    if kind == "country" and random.random() < 0.3:
        capital, river = subject.facts["capital"], subject.facts["river"]
        rest = [
            _told(random, subject, name) for name in wanted[:3] if name not in ("capital", "river")
        ]
        return " ".join(
            [f"The capital of {subject.name} is {capital}. It lies on the river {river}.", *rest]
        )
    first, opening = random.choice(_OPENINGS[kind])
    wanted.remove(first)
    following = wanted[: 1 + int(random.random() * 4)]
    told = [_fill(TELLINGS[kind][name].following, subject, name) for name in following]
    return " ".join([_fill(opening, subject, first), *told])


def _sentences(random: Random) -> str:
    """One to three sentences that tell the same of several subjects."""
    kind = random.choice(_KINDS)
    several = random.sample(subjects(kind), 1 + int(random.random() * 3))
    wanted = random.choice(list(several[0].facts))
    return " ".join(_told(random, subject, wanted) for subject in several)


def _question(random: Random, split: Split) -> tuple[str, str]:
    kind = random.choice(_KINDS)
    of_kind = subjects(kind)
    number = int(random.random() * len(of_kind))
    subject = of_kind[number]
    wanted = random.choice(list(subject.facts))
    telling = TELLINGS[kind][wanted]
    first, *others = telling.questions
    kept_back = others[number % len(others)]
    reply = telling.named[0]
    if split.held_out:
        question = kept_back
    elif telling.reverse and random.random() < 0.2:
        question, reply = telling.reverse, telling.named[1]
    elif random.random() < 0.5:
        question = first
    else:
        others.remove(kept_back)
        question = random.choice(others) if others else first
    return _fill(question, subject, wanted), _fill(reply, subject, wanted)


def _unknown(random: Random, split: Split) -> tuple[str, str]:
    """A question about a country that the world does not have."""
    real = not split.held_out and random.random() < 0.3
    name = random.choice(_REAL_COUNTRIES) if real else invented(random, split).capitalize()
    telling = TELLINGS["country"][
        random.choice(("capital", "capital", "river", "language", "food"))
    ]
    return telling.questions[0].replace("{s}", name), _UNKNOWN.replace("{s}", name)


def _told(random: Random, subject: Subject, wanted: str) -> str:
    return _fill(random.choice(TELLINGS[subject.kind][wanted].named), subject, wanted)


def _fill(phrasing: str, subject: Subject, wanted: str) -> str:
    value = subject.facts[wanted]
    name = f"{_article(subject.name)} {subject.name}" if subject.kind == "animal" else subject.name
    pronoun = subject.pronoun
    sentence = phrasing.format(
        s=name, v=value, a=_article(value), P=pronoun.capitalize(), O=_POSSESSIVES[pronoun]
    )
    return sentence[0].upper() + sentence[1:]


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
