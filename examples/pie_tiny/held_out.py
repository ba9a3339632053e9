"""The test sets: samples of every kind that no training run has drawn, and the episodes they
make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from examples.pie_tiny.call_episodes import Asynchronous, Synchronous
from examples.pie_tiny.corpus.mixture import GENERATORS
from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.corpus.tasks import Request
from examples.pie_tiny.episodes import Plain, React, Vocabulary

SEED = "pie-tiny-test"
ORDINARY_CALLS = 5
"""A request with more calls than this, in three chains, is a large one."""


@dataclass(frozen=True)
class SampleSet:
    """Samples of one kind, or those of it that fit a condition.

    Attributes:
        kind: the generator.
        fits: the condition.
        share: so many of the samples asked for are drawn; rare and long ones need not be as many.
    """

    kind: str
    fits: Callable[[Sample], bool] = lambda sample: True
    share: float = 1.0

    def draw(self, count: int, split: Split) -> list[Sample]:
        """The first samples of the test seed that fit."""
        samples: list[Sample] = []
        number = 0
        while len(samples) < max(1, round(count * self.share)):
            sample = GENERATORS[self.kind](Random(f"{SEED}:{self.kind}:{number}"), split)
            number += 1
            if self.fits(sample):
                samples.append(sample)
        return samples


def _large(sample: Sample) -> bool:
    request = sample.answer["request"]
    assert isinstance(request, Request)
    chains = request.chains
    calls = sum(map(len, chains))
    return calls > ORDINARY_CALLS and len(chains) == 3 == sample.answer.get("known", 3)


def _interrupted(sample: Sample) -> bool:
    request = sample.answer["request"]
    assert isinstance(request, Request)
    return sample.answer["known"] != len(request.chains)


def _two_digits(operator: str) -> Callable[[Sample], bool]:
    return lambda sample: sample.answer["operator"] == operator and _is_two_digits(sample)


def _is_two_digits(sample: Sample) -> bool:
    operands = sample.answer["operands"]
    assert isinstance(operands, list)
    return len(operands) == 2 and all(10 <= operand <= 99 for operand in operands)


PLAIN_SETS: Mapping[str, SampleSet] = {
    "sum of two 2-digit numbers": SampleSet("arithmetic", _two_digits("+")),
    "difference of two 2-digit numbers": SampleSet("arithmetic", _two_digits("-")),
    "product of two 2-digit numbers": SampleSet("arithmetic", _two_digits("*")),
    "arithmetic, other sizes": SampleSet("arithmetic", lambda sample: not _is_two_digits(sample)),
    "strings": SampleSet("strings"),
    "json": SampleSet("json"),
    "qa": SampleSet("qa"),
    "react": SampleSet("react"),
}
CALL_SETS: Mapping[str, SampleSet] = {
    "sequential": SampleSet("sequential"),
    "parallel": SampleSet("parallel"),
    "asynchronous": SampleSet("asynchronous"),
    "sequential, large": SampleSet("sequential", _large, 1 / 3),
    "parallel, large": SampleSet("parallel", _large, 1 / 3),
    "errands": SampleSet("errands", share=1 / 3),
    "asynchronous, large": SampleSet("asynchronous", _large, 1 / 3),
    "asynchronous, user interrupts": SampleSet("asynchronous", _interrupted, 1 / 3),
}


def episode(vocabulary: Vocabulary, sample: Sample, number: int) -> Plain:
    """The episode that a sample makes; the number seeds its clock, if it has one."""
    if sample.kind in ("sequential", "parallel"):
        return Synchronous(vocabulary, sample)
    if sample.kind in ("asynchronous", "errands"):
        return Asynchronous(vocabulary, sample, Random(f"{SEED}:clock:{number}"))
    return React(vocabulary, sample) if sample.kind == "react" else Plain(vocabulary, sample)
