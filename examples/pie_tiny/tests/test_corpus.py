"""The corpus as a whole: reproducible from a seed, names kept back, copying exercises, the
mixture.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from hashlib import sha256
from random import Random

import pytest

from examples.pie_tiny.corpus.calls import parallel, sequential
from examples.pie_tiny.corpus.cml import asynchronous
from examples.pie_tiny.corpus.mixture import GENERATORS, SHARES, draw
from examples.pie_tiny.corpus.questions import questions
from examples.pie_tiny.corpus.react import react
from examples.pie_tiny.corpus.sample import Generator, Split
from examples.pie_tiny.corpus.stories import stories
from examples.pie_tiny.corpus.tasks import Request
from examples.pie_tiny.corpus.words import (
    HELD_OUT_NOUNS,
    HELD_OUT_VERBS,
    NOUNS,
    VERBS,
    invented,
)

# SHA-256 of a thousand samples of each kind, half of them held out. Each kind was checked by a
# reader of its own when this was written (`git log --diff-filter=D -- examples/pie_tiny/tests`):
# who changes what a kind draws looks at its samples, and trains again.
FROZEN = {
    "copying": "75626a86844c5df6",
    "ordering": "8d12f85e877c3ef7",
    "facts": "0137ded70a4a2559",
    "story": "1b1a7eed419c467d",
    "qa": "4375985f11c8dd82",
    "arithmetic": "2ca82b1879466da5",
    "strings": "4e7b92cf3a252acc",
    "json": "d627052d79d2de45",
    "react": "c069617e2779990f",
    "sequential": "887337bf430f5782",
    "parallel": "71103291174ec2b0",
    "asynchronous": "521b423b833b3a28",
}


@pytest.mark.parametrize("kind", list(GENERATORS))
def test_each_kind_draws_what_it_drew(kind: str) -> None:
    drawn = [
        GENERATORS[kind](Random(f"frozen:{n}"), Split(bool(held_out)))
        for held_out in range(2)
        for n in range(500)
    ]
    text = "\0".join(f"{piece.learned}{piece.text}" for each in drawn for piece in each.pieces)
    assert sha256(text.encode()).hexdigest()[:16] == FROZEN[kind]


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


def functions(generator: Generator, held_out: bool) -> set[str]:
    """The names of functions in some samples."""
    requests = [generator(Random(n), Split(held_out)).request for n in range(500)]
    return {each.name for one in requests if isinstance(one, Request) for each in one.functions}


@pytest.mark.parametrize("generator", [sequential, parallel, asynchronous])
def test_held_out_functions_are_not_in_training(generator: Generator) -> None:
    words = set(HELD_OUT_VERBS) | set(HELD_OUT_NOUNS)
    assert not words & (set(VERBS) | set(NOUNS))
    trained, held_out = functions(generator, False), functions(generator, True)
    assert len(trained) > 100
    assert held_out
    assert not trained & held_out
    assert not any(words & set(name.split("_")) for name in trained)


def test_no_parameter_is_a_word_of_python() -> None:
    """One was called `break`, and no reader of calls could read it."""
    calls = re.findall(r"\[HEAD\](\w+\(.*?\))\[END\]", sequential(Random(3711), Split()).text)
    assert calls
    for call in calls:
        ast.parse(call, mode="eval")
