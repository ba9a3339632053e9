"""String operations: the steps spell what is asked about, and the answer is Python's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.corpus.strings import strings

seeds = st.integers(0, 2**32)
splits = st.builds(Split, st.booleans())

# The operations once more, told by their prompts alone: what they ask about, and what is right.
READINGS: dict[str, Callable[..., str]] = {
    r"Spell (?:the word )?(\w+) backwards\.": lambda word: " ".join(reversed(word)),
    r"(?:Spell|Spell the word|How do you spell) (\w+)[.?]": " ".join,
    r"(?:Reverse|Reverse the word|What is) (\w+)(?: reversed\?|\.)": lambda word: word[::-1],
    r"(?:What is|Give) the first letter of (\w+)[.?]": lambda word: word[0],
    r"Which letter does (\w+) begin with\?": lambda word: word[0],
    r"(?:What is|Give) the last letter of (\w+)[.?]": lambda word: word[-1],
    r"Which letter does (\w+) end with\?": lambda word: word[-1],
    r"How often does (\w) occur in (\w+)\?": lambda letter, word: str(word.count(letter)),
    r"Count the letter (\w) in (\w+)\.": lambda letter, word: str(word.count(letter)),
    r"How many times is the letter (\w) in (\w+)\?": lambda letter, word: str(word.count(letter)),
    r"Write (\w+) in capital letters\.": str.upper,
    r"Write the word (\w+) in uppercase\.": str.upper,
    r"Uppercase (\w+)\.": str.upper,
    r"Join (?:the words )?(\w+) and (\w+)\.": lambda first, second: first + second,
    r"Write (\w+) and (\w+) as one word\.": lambda first, second: first + second,
    r"Repeat (\w+) (\d) times\.": lambda word, times: " ".join([word] * int(times)),
    r"Write the word (\w+) (\d) times\.": lambda word, times: " ".join([word] * int(times)),
}


def question(sample: Sample) -> str:
    return sample.prompt.split("\n")[1].removesuffix("<|end|>")


def reading(sample: Sample) -> tuple[str, tuple[str, ...]]:
    """The one pattern that the prompt fits, and what it names."""
    fitting = [
        (pattern, match.groups())
        for pattern in READINGS
        if (match := re.fullmatch(pattern, question(sample)))
    ]
    assert len(fitting) == 1, question(sample)
    return fitting[0]


@given(seeds, splits)
def test_the_prompt_has_one_reading_and_the_answer_is_its(seed: int, split: Split) -> None:
    sample = strings(Random(seed), split)
    pattern, named = reading(sample)
    expected = READINGS[pattern](*named)
    assert sample.kind == "strings"
    assert sample.pieces[-1].text.endswith(f"\nAnswer: {expected}<|end|>")
    assert len(sample.text) <= 250


@given(seeds, splits)
def test_a_count_rises_at_its_letter_only(seed: int, split: Split) -> None:
    sample = strings(Random(seed), split)
    _, found, rest = sample.text.partition("\nCount:")
    if found:
        tally = rest.split("\n")[0].split()
        letter, word = reading(sample)[1]
        assert tally[::2] == list(word)
        assert tally[1::2] == [str(word[: n + 1].count(letter)) for n in range(len(word))]
