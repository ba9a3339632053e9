"""Operations on strings, worked out letter by letter.

A token is often a whole word, so the steps spell it first: each letter after a space is a token of
its own, and what follows works on those. Counting keeps its count beside every letter.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from examples.pie_tiny.corpus.sample import Sample, Split, chat
from examples.pie_tiny.corpus.words import ADJECTIVES, ANIMALS, COLOURS, THINGS, invented

WORDS = (*ANIMALS, *THINGS, *COLOURS, *ADJECTIVES)
KNOWN = frozenset(WORDS)
# Longer words would mostly test how far the model can look back, not whether it knows the
# operation.
LONGEST = 9
VOWELS = "aeiou"

Worked = tuple[str, str, str]
"""The prompt, the steps (each line with its newline) and the answer."""


def strings(random: Random, split: Split) -> Sample:
    """One operation on a word or two, its steps, and a last line `Answer: ...`.

    Held-out samples use only made-up words kept back from training, the others half of them real
    ones.
    """
    prompt, steps, value = random.choice(OPERATIONS)(random, split)
    return chat("strings", "", prompt, f"{steps}Answer: {value}", value=value)


def spelled(word: str) -> str:
    """The letters with a space before each."""
    return "".join(f" {letter}" for letter in word)


def _word(random: Random, split: Split) -> str:
    if not split.held_out and random.random() < 0.5:
        return random.choice(WORDS)
    while len(word := invented(random, split)) > LONGEST or word in KNOWN:
        pass
    return word


def _letters(word: str) -> str:
    return f"Letters:{spelled(word)}\n"


def _spell(random: Random, split: Split) -> Worked:
    word = _word(random, split)
    asked = random.choice(("Spell the word {}.", "Spell {}.", "How do you spell {}?"))
    return asked.format(word), _letters(word), " ".join(word)


def _spell_backwards(random: Random, split: Split) -> Worked:
    word = _word(random, split)
    asked = random.choice(("Spell the word {} backwards.", "Spell {} backwards."))
    return asked.format(word), _letters(word), " ".join(word[::-1])


def _reverse(random: Random, split: Split) -> Worked:
    word = _word(random, split)
    asked = random.choice(("Reverse the word {}.", "Reverse {}.", "What is {} reversed?"))
    backwards = word[::-1]
    return asked.format(word), f"{_letters(word)}Reversed:{spelled(backwards)}\n", backwards


def _first(random: Random, split: Split) -> Worked:
    word = _word(random, split)
    asked = random.choice(
        (
            "What is the first letter of {}?",
            "Give the first letter of {}.",
            "Which letter does {} begin with?",
        )
    )
    return asked.format(word), _letters(word), word[0]


def _last(random: Random, split: Split) -> Worked:
    word = _word(random, split)
    asked = random.choice(
        (
            "What is the last letter of {}?",
            "Give the last letter of {}.",
            "Which letter does {} end with?",
        )
    )
    return asked.format(word), _letters(word), word[-1]


def _count(random: Random, split: Split) -> Worked:
    word = _word(random, split)
    # Mostly a letter of the word; a vowel now and then may not be in it at all.
    letter = random.choice(word if random.random() < 0.8 else VOWELS)
    asked = random.choice(
        (
            "How often does {1} occur in {0}?",
            "Count the letter {1} in {0}.",
            "How many times is the letter {1} in {0}?",
        )
    )
    count, tally = 0, []
    for each in word:
        count += each == letter
        tally.append(f" {each} {count}")
    return asked.format(word, letter), f"{_letters(word)}Count:{''.join(tally)}\n", str(count)


def _uppercase(random: Random, split: Split) -> Worked:
    word = _word(random, split)
    asked = random.choice(
        ("Write {} in capital letters.", "Write the word {} in uppercase.", "Uppercase {}.")
    )
    upper = word.upper()
    return asked.format(word), f"{_letters(word)}Capitals:{spelled(upper)}\n", upper


def _join(random: Random, split: Split) -> Worked:
    first, second = _word(random, split), _word(random, split)
    asked = random.choice(
        ("Join {} and {}.", "Join the words {} and {}.", "Write {} and {} as one word.")
    )
    joined = first + second
    return asked.format(first, second), _letters(joined), joined


def _repeat(random: Random, split: Split) -> Worked:
    word, times = _word(random, split), random.randint(2, 5)
    asked = random.choice(("Repeat {} {} times.", "Write the word {} {} times."))
    numbered = "".join(f" {n} {word}" for n in range(1, times + 1))
    return asked.format(word, times), f"Repeated:{numbered}\n", " ".join([word] * times)


OPERATIONS: tuple[Callable[[Random, Split], Worked], ...] = (
    _spell,
    _spell_backwards,
    _reverse,
    _first,
    _last,
    _count,
    _uppercase,
    _join,
    _repeat,
)
