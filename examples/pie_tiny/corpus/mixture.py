"""The corpus as a whole: which generator makes the n-th sample, and how often each one comes."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from examples.pie_tiny.corpus.arithmetic import arithmetic
from examples.pie_tiny.corpus.calls import parallel, sequential
from examples.pie_tiny.corpus.cml import asynchronous
from examples.pie_tiny.corpus.copying import copying
from examples.pie_tiny.corpus.facts import facts
from examples.pie_tiny.corpus.json_objects import json_objects
from examples.pie_tiny.corpus.ordering import ordering
from examples.pie_tiny.corpus.questions import questions
from examples.pie_tiny.corpus.react import react
from examples.pie_tiny.corpus.sample import Generator, Sample, Split
from examples.pie_tiny.corpus.stories import stories
from examples.pie_tiny.corpus.strings import strings

_CORPUS: Mapping[str, tuple[Generator, float]] = {
    "copying": (copying, 0.11),
    "ordering": (ordering, 0.31),
    "facts": (facts, 0.025),
    "story": (stories, 0.02),
    "qa": (questions, 0.045),
    "arithmetic": (arithmetic, 0.06),
    "strings": (strings, 0.065),
    "json": (json_objects, 0.055),
    "react": (react, 0.02),
    "sequential": (sequential, 0.055),
    "parallel": (parallel, 0.075),
    "asynchronous": (asynchronous, 0.16),
}
GENERATORS = {kind: generator for kind, (generator, _) in _CORPUS.items()}
SHARES = {kind: share for kind, (_, share) in _CORPUS.items()}
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
