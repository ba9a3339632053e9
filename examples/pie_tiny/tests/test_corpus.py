"""The corpus as a whole: reproducible from a seed, names kept back, copying exercises, the
mixture.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.copying import copying
from examples.pie_tiny.corpus.functions import ESTIMATE_TOKENS
from examples.pie_tiny.corpus.mixture import GENERATORS, SHARES, draw
from examples.pie_tiny.corpus.ordering import ordering
from examples.pie_tiny.corpus.questions import questions
from examples.pie_tiny.corpus.react import react
from examples.pie_tiny.corpus.sample import END, Generator, Split
from examples.pie_tiny.corpus.stories import stories
from examples.pie_tiny.corpus.words import (
    HELD_OUT_NOUNS,
    HELD_OUT_VERBS,
    NOUNS,
    VERBS,
    invented,
    strange,
)

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.booleans())
def test_a_sample_depends_on_seed_and_number_alone(number: int, held_out: bool) -> None:
    split = Split(held_out)
    assert draw("seed", number, split) == draw("seed", number, split)


def test_every_kind_comes_as_often_as_its_share_says() -> None:
    count = 4000
    kinds = Counter(draw("shares", number, Split()).kind for number in range(count))
    assert set(kinds) == set(GENERATORS)
    for kind, share in SHARES.items():
        assert abs(kinds[kind] / count - share) < 0.03
    assert abs(sum(SHARES.values()) - 1) < 1e-9


def test_names_are_either_for_training_or_held_out() -> None:
    random = Random(5)
    training = {invented(random, Split()) for _ in range(30_000)}
    held_out = {invented(random, Split(True)) for _ in range(3000)}
    assert len(training) > 10_000
    assert not training & held_out


@pytest.mark.parametrize(
    ("generator", "named"),
    [
        (questions, r"\b((?!Who)[A-Z]\w+) (?:lives|owns|likes|has)"),
        (react, r"\"([A-Z]\w+)\""),
        (stories, r"called ([A-Z][a-z]+)"),
    ],
)
def test_held_out_samples_name_whom_no_other_does(generator: Generator, named: str) -> None:
    trained, held_out = (
        {name for n in range(800) for name in re.findall(named, generator(Random(n), split).text)}
        for split in (Split(), Split(held_out=True))
    )
    assert len(held_out) > 500
    assert held_out.isdisjoint(trained)


@given(SEEDS, st.booleans())
def test_a_story_is_whole(seed: int, held_out: bool) -> None:
    text = stories(Random(seed), Split(held_out)).pieces[-1].text.removesuffix(END)
    assert 40 <= len(text.split()) <= 150
    assert not set("{}<>[]\n") & set(text)
    assert text.endswith((".", "!", '."'))
    assert text.count('"') % 2 == 0
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text.lower())


@given(SEEDS, st.booleans())
def test_copying_exercises_are_copies(seed: int, held_out: bool) -> None:
    sample = copying(Random(seed), Split(held_out))
    asked = sample.prompt.split("<|user|>\n")[1].replace("_", " ")
    learned = sample.pieces[1].text.removesuffix("<|end|>")
    for mark in '[],="_':
        learned = learned.replace(mark, " ")
    assert all(word in asked for word in learned.split())


@given(SEEDS, st.booleans())
def test_ordering_exercises_tell_times_and_put_the_longest_first(seed: int, held_out: bool) -> None:
    sample = ordering(Random(seed), Split(held_out))
    shown = dict(re.findall(r"^(\w+)~(\d\d)\(", sample.text, re.MULTILINE))
    tasks = re.findall(r"^- ([^~.]+)(?:~(\d\d))?\.", sample.text, re.MULTILINE)
    times = {}
    for letter, (task, time) in zip("abcdef", tasks, strict=False):
        specified = shown.get(task.replace(" the ", "_").replace(" ", "_"), time)
        assert time in ("", specified)
        times[letter] = specified
    reply = sample.pieces[-1].text.removesuffix("<|end|>").split()
    if "Times." in sample.text:
        assert reply == [f"{letter}~{time}" for letter, time in times.items()]
    else:
        assert reply == [
            f"{letter}1" for letter in sorted(times, key=lambda name: -int(times[name]))
        ]


@given(SEEDS, st.booleans())
def test_times_behind_tasks_are_learnt_where_there_are_specifications(
    seed: int, held_out: bool
) -> None:
    sample = ordering(Random(seed), Split(held_out))
    learned = [piece.text for piece in sample.pieces[:-1] if piece.learned]
    assert set(learned) <= set(ESTIMATE_TOKENS)
    assert sample.pieces[-1].learned
    assert all(f"\n- {one}" not in sample.prompt for one in learned)


@given(SEEDS)
def test_strange_words_are_letters_and_no_known_word(seed: int) -> None:
    word = strange(Random(seed))
    assert re.fullmatch("[a-z]+", word)
    assert word not in (*VERBS, *NOUNS, *HELD_OUT_VERBS, *HELD_OUT_NOUNS)
