"""The values that JSON samples hold: names, words, numbers, flags and lists of those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.corpus.words import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    PEOPLE,
    PLACES,
    THINGS,
    invented,
)

# Syllables may chance upon a word that stands for a value of another type, or on a known name.
RESERVED = frozenset(("none", "yes", "no", "and", *(name.lower() for name in (*PEOPLE, *PLACES))))


def made_up(random: Random, split: Split) -> str:
    """A made-up word that can be a string and is no known name."""
    while (word := invented(random, split)) in RESERVED:
        pass
    return word


def person(random: Random, split: Split) -> str:
    """A person's name; half of training's are made up, and all that are held out."""
    return _name(random, split, PEOPLE)


def place(random: Random, split: Split) -> str:
    """A town's name; half of training's are made up, and all that are held out."""
    return _name(random, split, PLACES)


def thing(random: Random, split: Split) -> str:
    """A thing in one word or two: `lamp`, `old lamp`, or a made-up one."""
    word = _word(random, split, THINGS)
    return f"{random.choice(ADJECTIVES)} {word}" if random.random() < 0.15 else word


def animal(random: Random, split: Split) -> str:
    """An animal, known or made up."""
    return _word(random, split, ANIMALS)


def colour(random: Random, split: Split) -> str:
    """A colour that exists."""
    return random.choice(COLOURS)


def mood(random: Random, split: Split) -> str:
    """An adjective that exists."""
    return random.choice(ADJECTIVES)


def number(random: Random, split: Split) -> int:
    """An integer of up to four digits, now and then below zero."""
    value = random.randrange(random.choice((10, 100, 100, 1000, 10_000)))
    return -value if random.random() < 0.03 else value


def flag(random: Random, split: Split) -> bool:
    """Yes or no."""
    return random.random() < 0.5


def several(maker: Callable[[Random, Split], object]) -> Callable[[Random, Split], list[object]]:
    """Makes lists of two or three of the maker's values."""

    def listed(random: Random, split: Split) -> list[object]:
        return [maker(random, split) for _ in range(random.choice((2, 2, 3)))]

    return listed


def _name(random: Random, split: Split, known: Sequence[str]) -> str:
    if not split.held_out and random.random() < 0.5:
        return random.choice(known)
    return made_up(random, split).capitalize()


def _word(random: Random, split: Split, known: Sequence[str]) -> str:
    return random.choice(known) if random.random() < 0.7 else made_up(random, split)
