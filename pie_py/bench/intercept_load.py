"""The workload of `pie-py bench intercept`: requests of six kinds of augmentation.

The authors' summary of InferCept (Abhyankar and Zhang, "Efficient Intercept Support for Augmented LLMs")
names the six and gives ranges: from 3 calls a request in the mean to 28, calculators below a second, models
for speech and images 20 times longer. Within these the figures of each kind are those of table 1 of the
paper (ICML 2024) as remembered: the summary has no table. What is generated between calls is our choice.
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


@dataclass(frozen=True)
class Part:
    """What is generated, the call that follows, and the tokens that it returns."""

    tokens: int
    seconds: float
    answer: int


@dataclass(frozen=True)
class Job:
    """One request."""

    arrival: float  # seconds since the start
    kind: str
    prompt: int  # tokens
    parts: tuple[Part, ...]

    @property
    def generated(self) -> int:
        """Tokens in all."""
        return sum(part.tokens for part in self.parts)

    @property
    def outside(self) -> float:
        """Seconds of its calls in all."""
        return sum(part.seconds for part in self.parts)

    @property
    def longest(self) -> int:
        """Tokens of its context at the end."""
        return self.prompt + sum(part.tokens + part.answer for part in self.parts)


def jobs(
    count: int,
    rate: float,
    seed: int,
    *,
    time_scale: float = 1.0,
    token_scale: float = 1.0,
    most_tokens: int = 1 << 30,
) -> list[Job]:
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
        found.append(_job(chance, now, time_scale, token_scale, most_tokens))
    return found


def _job(chance: random.Random, arrival: float, time_scale: float, scale: float, most: int) -> Job:
    kind = chance.choice(KINDS)
    calls = max(1, round(chance.gauss(*kind.calls)))
    generated, answer = max(1, round(GENERATED * scale)), max(1, round(ANSWER * scale))
    prompt = max(4, round(scale * max(32.0, chance.gauss(*kind.context))))
    parts = []
    seconds = [
        time_scale * max(kind.seconds[0] / 10, chance.gauss(*kind.seconds)) for _ in range(calls)
    ]
    room = (most - generated) // (generated + answer)
    calls = min(calls, max(1, room // 2))
    prompt = min(prompt, most - generated - calls * (generated + answer))
    parts = [Part(generated, seconds[i], answer) for i in range(calls)]
    return Job(arrival, kind.name, prompt, (*parts, Part(generated, 0.0, 0)))
