"""The corpus as a whole: which generator makes the n-th sample, and how often each one comes."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from examples.pie_tiny.corpus.arithmetic import arithmetic
from examples.pie_tiny.corpus.calls import parallel, sequential
from examples.pie_tiny.corpus.cml import asynchronous
from examples.pie_tiny.corpus.facts import facts
from examples.pie_tiny.corpus.json_objects import json_objects
from examples.pie_tiny.corpus.questions import questions
from examples.pie_tiny.corpus.react import react
from examples.pie_tiny.corpus.sample import Generator, Sample, Split
from examples.pie_tiny.corpus.stories import stories
from examples.pie_tiny.corpus.strings import strings

GENERATORS: Mapping[str, Generator] = {
    "facts": facts,
    "story": stories,
    "qa": questions,
    "arithmetic": arithmetic,
    "strings": strings,
    "json": json_objects,
    "react": react,
    "sequential": sequential,
    "parallel": parallel,
    "asynchronous": asynchronous,
}

SHARES: Mapping[str, float] = {
    "facts": 0.05,
    "story": 0.05,
    "qa": 0.07,
    "arithmetic": 0.18,
    "strings": 0.07,
    "json": 0.10,
    "react": 0.08,
    "sequential": 0.08,
    "parallel": 0.10,
    "asynchronous": 0.22,
}
"""Of samples, not of tokens: calls are the longest, so that they are half of the text."""


def draw(seed: str, number: int, split: Split) -> Sample:
    """The `number`-th sample of the corpus with this seed; any of them at once, in any order."""
    random = Random(f"{seed}:{number}")
    kind = random.choices(list(SHARES), list(SHARES.values()))[0]
    return GENERATORS[kind](random, split)
