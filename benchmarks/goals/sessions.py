"""Sessions of programs, drawn: what they generate between calls of tools, and when they come."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Turn(NamedTuple):
    """A prompt and a text, in tokens, and the seconds of the tool that is called then."""

    prompt: int
    output: int
    seconds: float = 0.0


class Session(NamedTuple):
    """One run of a program, that comes at a time in seconds."""

    at: float
    program: str
    turns: list[Turn]


def _tokens(random: Random, middle: float) -> int:
    return min(2000, max(4, round(random.lognormvariate(0.0, 0.6) * middle)))


def _program(random: Random, name: str, least: int, most: int, output: float) -> Session:
    turns = [
        Turn(_tokens(random, 150 if turn else 500), _tokens(random, output), random.uniform(0.3, 2))
        for turn in range(random.randint(least, most))
    ]
    return Session(random.random(), name, turns)


def _chats(random: Random) -> Session:
    return _program(random, *random.choices([("chat", 1, 1, 60), ("agent", 6, 16, 100)], [6, 1])[0])


def _agents(random: Random) -> Session:
    kinds = [("search", 2, 3, 40), ("report", 3, 6, 120), ("coder", 8, 20, 90)]
    return _program(random, *random.choice(kinds))


def _bimodal(random: Random) -> Session:
    """One program whose texts are short or long: no name tells which."""
    return Session(random.random(), "answer", [Turn(100, random.choices([30, 1000], [9, 1])[0])])


WORKLOADS: dict[str, Callable[[Random], Session]] = {
    "short chats beside long agents": _chats,
    "agents with tools": _agents,
    "short or long texts": _bimodal,
}


def drawn(workload: str, seed: int, count: int) -> list[Session]:
    """So many sessions, that come within a second."""
    random = Random(seed)
    return [WORKLOADS[workload](random) for _ in range(count)]
