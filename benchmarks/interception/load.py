"""The workload of `intercept`: requests of six kinds of augmentation (InferCept).

**Not verified.** The figures of `KINDS` are those of table 1 of the paper (ICML 2024) as
remembered. The only text at hand is the authors' summary (Abhyankar and Zhang, "Efficient Intercept
Support for Augmented LLMs"), which has no table. What it says, the figures agree with, and a test
holds them to it: six kinds, from 3 calls per request in the mean to 28, calculators below a second,
models for speech and images 20 times longer. Check the table against the paper before quoting
results. What is generated between calls is our choice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One augmentation: means and standard deviations."""

    name: str
    seconds: tuple[float, float]  # of a call
    calls: tuple[float, float]  # of a request
    context: tuple[float, float]  # tokens when it is first intercepted


KINDS = (
    Kind("calculator", (9e-5, 6e-5), (3.75, 1.3), (1422, 738)),
    Kind("question answering", (0.69, 0.17), (2.52, 1.73), (1846, 428)),
    Kind("virtual environment", (0.09, 0.014), (28.18, 15.2), (2185, 115)),
    Kind("chatbot", (28.6, 15.6), (4.45, 1.96), (753, 703)),
    Kind("images", (20.03, 7.8), (6.91, 3.93), (1247, 792)),
    Kind("text to speech", (17.24, 7.6), (6.91, 3.93), (1251, 792)),
)
GENERATED = 40  # tokens between two calls
ANSWER = 20  # tokens that a call returns


@dataclass(frozen=True, slots=True)
class Segment:
    """What a request generates, and the call that follows."""

    tokens: int  # generated
    seconds: float  # of the call; the last segment has none
    answer: int  # tokens that the call returns


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its calls."""

    arrival: float  # seconds since the start
    kind: str
    prompt: int  # tokens
    segments: tuple[Segment, ...]

    @property
    def generated(self) -> int:
        """Tokens in all."""
        return sum(one.tokens for one in self.segments)

    @property
    def outside(self) -> float:
        """Seconds of its calls in all."""
        return sum(one.seconds for one in self.segments)

    @property
    def longest(self) -> int:
        """Tokens of its context at the end."""
        return self.prompt + sum(one.tokens + one.answer for one in self.segments)


def requests(
    count: int,
    rate: float,
    seed: int,
    *,
    time_scale: float = 1.0,
    token_scale: float = 1.0,
    most_tokens: int = 1 << 30,
) -> list[Request]:
    """Requests of all kinds in turn, at random, with Poisson arrivals.

    Args:
        count: how many.
        rate: of arrivals, a second.
        seed: the same seed gives the same requests, at every rate.
        time_scale: of the calls' durations.
        token_scale: of lengths.
        most_tokens: that a context may reach; longer requests have fewer calls.
    """
    chance, gaps = random.Random(seed), random.Random(seed + 1)
    now = 0.0
    found = []
    for _ in range(count):
        now += gaps.expovariate(rate)
        found.append(_request(chance, now, time_scale, token_scale, most_tokens))
    return found


def _request(
    chance: random.Random, arrival: float, time_scale: float, scale: float, most: int
) -> Request:
    kind = chance.choice(KINDS)
    calls = max(1, round(chance.gauss(*kind.calls)))
    generated, answer = max(1, round(GENERATED * scale)), max(1, round(ANSWER * scale))
    prompt = max(4, round(scale * max(32.0, chance.gauss(*kind.context))))
    seconds = [
        time_scale * max(kind.seconds[0] / 10, chance.gauss(*kind.seconds)) for _ in range(calls)
    ]
    room = (most - generated) // (generated + answer)
    calls = min(calls, max(1, room // 2))
    prompt = min(prompt, most - generated - calls * (generated + answer))
    segments = [Segment(generated, seconds[i], answer) for i in range(calls)]
    return Request(arrival, kind.name, prompt, (*segments, Segment(generated, 0.0, 0)))
