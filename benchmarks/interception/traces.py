"""Six loads that part the policies: contexts and calls that are long or short, on their own or
mixed.

On each another simple policy is best: `preserve` where calls are short, `swap` where contexts and
calls are long. A policy that weighs costs has to be near the best on all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

CALLS = (3, 8)  # of a request
GENERATED = 40  # tokens between two calls
ANSWER = 20  # tokens that a call returns


@dataclass(frozen=True, slots=True)
class Segment:
    """A part that a request generates, and the call that follows."""

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


@dataclass(frozen=True)
class Trace:
    """Requests of one sort, or of several mixed."""

    name: str
    rate: float  # of arrivals, a second, that memory for 60 000 tokens just bears
    context: tuple[int, int]  # tokens of a prompt
    seconds: Callable[[random.Random], float]  # of a call
    sorts: tuple[Trace, ...] = ()  # that are mixed, if any


def _long(chance: random.Random) -> float:
    return chance.uniform(20.0, 40.0)


def _short(chance: random.Random) -> float:
    return chance.uniform(0.02, 0.2)


def _either(chance: random.Random) -> float:
    return 0.05 if chance.random() < 0.8 else 60.0


SORTS = (
    Trace("long contexts, long calls", 0.6, (2500, 4000), _long),
    Trace("long contexts, short calls", 1.6, (2500, 4000), _short),
    Trace("short contexts, long calls", 6.0, (50, 200), _long),
    Trace("short contexts, short calls", 6.0, (50, 200), _short),
)
TRACES = (
    *SORTS,
    Trace("bimodal calls", 1.0, (1500, 3000), _either),
    Trace("mixed", 1.6, (0, 0), _long, SORTS),
)


def trace_requests(
    trace: Trace, count: int, seed: int, rate: float, *, times: float = 1.0, lengths: float = 1.0
) -> list[Request]:
    """Requests of a trace with Poisson arrivals.

    Args:
        trace: of which sort.
        count: how many.
        seed: the same seed gives the same requests.
        rate: of arrivals, a second.
        times: scale of the calls' durations.
        lengths: scale of lengths in tokens.
    """
    chance = random.Random(seed)
    generated, answer = (max(1, round(n * lengths)) for n in (GENERATED, ANSWER))
    now, found = 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate)
        sort = chance.choice(trace.sorts or (trace,))
        prompt = max(4, round(lengths * chance.randint(*sort.context)))
        calls = [
            Segment(generated, times * sort.seconds(chance), answer)
            for _ in range(chance.randint(*CALLS))
        ]
        found.append(Request(now, sort.name, prompt, (*calls, Segment(generated, 0.0, 0))))
    return found
