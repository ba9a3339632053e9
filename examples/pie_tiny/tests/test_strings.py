"""String operations: the steps spell what is asked about, and the answer is Python's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.corpus.strings import WORDS, strings

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


def words_of(sample: Sample) -> list[str]:
    return [name for name in reading(sample)[1] if len(name) > 1]


@given(seeds, splits)
def test_the_prompt_has_one_reading_and_the_answer_is_its(seed: int, split: Split) -> None:
    sample = strings(Random(seed), split)
    pattern, named = reading(sample)
    expected = READINGS[pattern](*named)
    assert sample.kind == "strings"
    assert sample.answer == {"value": expected}
    assert sample.pieces[-1].text.endswith(f"\nAnswer: {expected}<|end|>")
    assert len(sample.text) <= 250


@given(seeds, splits)
def test_the_first_step_goes_through_the_words(seed: int, split: Split) -> None:
    sample = strings(Random(seed), split)
    label, _, first = sample.pieces[-1].text.split("\n")[0].partition(":")
    if label == "Letters":
        assert first == "".join(f" {letter}" for letter in "".join(words_of(sample)))
    else:
        assert label == "Repeated"
        assert first.split()[1::2] == str(sample.answer["value"]).split()
        assert first.split()[::2] == [str(n + 1) for n in range(len(first.split()) // 2)]


@given(seeds, splits)
def test_a_count_rises_at_its_letter_only(seed: int, split: Split) -> None:
    sample = strings(Random(seed), split)
    _, found, rest = sample.text.partition("\nCount:")
    if found:
        tally = rest.split("\n")[0].split()
        letter, word = reading(sample)[1]
        assert tally[::2] == list(word)
        assert tally[1::2] == [str(word[: n + 1].count(letter)) for n in range(len(word))]


@given(seeds)
def test_held_out_words_are_made_up(seed: int) -> None:
    assert not set(words_of(strings(Random(seed), Split(held_out=True)))) & set(WORDS)


def test_every_operation_comes_up() -> None:
    random = Random(3)
    samples = [strings(random, Split()) for _ in range(2000)]
    assert {reading(sample)[0] for sample in samples} == set(READINGS)
    real = sum(words_of(sample)[0] in WORDS for sample in samples)
    assert 0.4 < real / len(samples) < 0.6
