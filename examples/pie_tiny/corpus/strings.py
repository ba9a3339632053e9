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


def strings(random: Random, split: Split) -> Sample:
    """One operation on a word or two, its steps, and a last line `Answer: ...`.

    Held-out samples use only made-up words kept back from training, the others half of them real
    ones.
    """
    prompt, steps, value = _worked(random, split)
    return chat("strings", "", prompt, f"{steps}Answer: {value}")


def spelled(word: str) -> str:
    """The letters with a space before each."""
    return "".join(f" {letter}" for letter in word)


def _word(random: Random, split: Split) -> str:
    if not split.held_out and random.random() < 0.5:
        return random.choice(WORDS)
    while len(word := invented(random, split)) > LONGEST or word in KNOWN:
        pass
    return word


def _step(name: str, text: str) -> str:
    return f"{name}:{spelled(text)}\n"


# Prompts of an operation on one word, the step that comes after its letters, and the answer.
_ON_A_WORD: tuple[tuple[str, Callable[[str], str], Callable[[str], str]], ...] = (
    ("Spell the word {}. | Spell {}. | How do you spell {}?", lambda w: "", " ".join),
    (
        "Spell the word {} backwards. | Spell {} backwards.",
        lambda w: "",
        lambda w: " ".join(w[::-1]),
    ),
    (
        "Reverse the word {}. | Reverse {}. | What is {} reversed?",
        lambda w: _step("Reversed", w[::-1]),
        lambda w: w[::-1],
    ),
    (
        "What is the first letter of {}? | Give the first letter of {}."
        " | Which letter does {} begin with?",
        lambda w: "",
        lambda w: w[0],
    ),
    (
        "What is the last letter of {}? | Give the last letter of {}."
        " | Which letter does {} end with?",
        lambda w: "",
        lambda w: w[-1],
    ),
    (
        "Write {} in capital letters. | Write the word {} in uppercase. | Uppercase {}.",
        lambda w: _step("Capitals", w.upper()),
        str.upper,
    ),
)
# In the order in which they are drawn: a number of `_ON_A_WORD`, or an operation of its own.
_OPERATIONS = (0, 1, 2, 3, 4, "count", 5, "join", "repeat")
_COUNTS = (
    "How often does {1} occur in {0}?",
    "Count the letter {1} in {0}.",
    "How many times is the letter {1} in {0}?",
)
_JOINS = ("Join {} and {}.", "Join the words {} and {}.", "Write {} and {} as one word.")


def _worked(random: Random, split: Split) -> tuple[str, str, str]:
    """The prompt, the steps (each line with its newline) and the answer of one operation."""
    operation = random.choice(_OPERATIONS)
    word = _word(random, split)
    if operation == "join":
        second = _word(random, split)
        joined = word + second
        return random.choice(_JOINS).format(word, second), _step("Letters", joined), joined
    if operation == "repeat":
        times = random.randint(2, 5)
        asked = random.choice(("Repeat {} {} times.", "Write the word {} {} times."))
        numbered = "".join(f" {n} {word}" for n in range(1, times + 1))
        return asked.format(word, times), f"Repeated:{numbered}\n", " ".join([word] * times)
    steps = _step("Letters", word)
    if operation == "count":
        # Mostly a letter of the word; a vowel now and then may not be in it at all.
        letter = random.choice(word if random.random() < 0.8 else VOWELS)
        asked = random.choice(_COUNTS)
        tally = "".join(f" {c} {word[: n + 1].count(letter)}" for n, c in enumerate(word))
        return asked.format(word, letter), f"{steps}Count:{tally}\n", str(word.count(letter))
    prompts, step, answer = _ON_A_WORD[int(operation)]
    return random.choice(prompts.split(" | ")).format(word), steps + step(word), answer(word)
