"""The corpus as a whole: which generator makes the n-th sample, and how often each one comes."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from examples.pie_tiny.corpus.arithmetic import arithmetic
from examples.pie_tiny.corpus.calls import parallel, sequential
from examples.pie_tiny.corpus.cml import asynchronous, errands
from examples.pie_tiny.corpus.copying import copying
from examples.pie_tiny.corpus.facts import facts
from examples.pie_tiny.corpus.json_objects import json_objects
from examples.pie_tiny.corpus.ordering import ordering
from examples.pie_tiny.corpus.questions import questions
from examples.pie_tiny.corpus.react import react
from examples.pie_tiny.corpus.sample import Generator, Sample, Split
from examples.pie_tiny.corpus.stories import stories
from examples.pie_tiny.corpus.strings import strings

GENERATORS: Mapping[str, Generator] = {
    "copying": copying,
    "ordering": ordering,
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
    "errands": errands,
}

SHARES: Mapping[str, float] = {
    "copying": 0.11,
    "ordering": 0.31,
    "facts": 0.025,
    "story": 0.02,
    "qa": 0.045,
    "arithmetic": 0.06,
    "strings": 0.065,
    "json": 0.055,
    "react": 0.02,
    "sequential": 0.055,
    "parallel": 0.075,
    "asynchronous": 0.13,
    "errands": 0.03,
}
"""Of samples, not of tokens: calls are the longest by far, ordering exercises the shortest."""


def draw(seed: str, number: int, split: Split, copies: float = SHARES["copying"]) -> Sample:
    """The `number`-th sample of the corpus with this seed; any of them at once, in any order.

    Args:
        seed: of the corpus.
        number: which sample.
        split: which names it may hold.
        copies: the share of copying exercises, in place of the usual one.
    """
    random = Random(f"{seed}:{number}")
    if random.random() < copies:
        return copying(random, split)
    return GENERATORS[random.choices(_KINDS, _WEIGHTS)[0]](random, split)


_KINDS = [kind for kind in SHARES if kind != "copying"]
_WEIGHTS = [SHARES[kind] for kind in _KINDS]
