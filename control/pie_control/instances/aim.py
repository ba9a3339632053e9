"""Goals of whole programs: which instances of one user go first where not all have room.

Without a goal it is the one with the least to do: shortest remaining processing time (Schrage,
1968), with what it is expected to generate in the place of what is not known. It is learned by
user, program and *phase*, the number of calls outside that have ended: the mean of what earlier
instances have generated from that phase on, of those that had generated as much as this one has by
now. Where none had, a program is expected to generate as much again as it has so far: least
attained service, as in Autellix (Luo et al., 2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, TypeAlias

from pie_py.wire.methods import Goal

HASTE = 2.0  # slack is short with less time than this many times what the rest takes


class Class(IntEnum):
    """Which go before others, whatever is left to do."""

    URGENT = 0  # the time until the deadline is short
    LATENCY = 1
    USUAL = 2
    THROUGHPUT = 3


Precedence: TypeAlias = tuple[Class, float]  # less goes first: by the deadline, or tokens to come


class Lengths(Protocol):
    """Tokens that programs have generated from a phase on."""

    def add(self, user: str, kind: str, amount: float) -> None:
        """Notes those of an instance that has ended."""

    def mean_beyond(self, user: str, kind: str, amount: float) -> float | None:
        """The mean of those that were more than an amount; None if there were none."""


class Aim:
    """The goal of one instance, and how far it is."""

    __slots__ = ("_clock", "_lengths", "due", "goal", "phases", "program", "since", "user")

    def __init__(
        self,
        user: str,
        program: str,
        lengths: Lengths | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.user = user
        self.program = program
        self.goal = Goal()
        self.since = clock()
        self.due = math.inf  # of the clock
        self.phases = [0]  # tokens that it had generated as each began
        self._lengths = lengths
        self._clock = clock

    def take(self, goal: Goal) -> None:
        """Takes what a launch asks for, in the place of what it has."""
        own = self.goal
        self.goal = Goal(
            goal.deadline or own.deadline,
            goal.objective or own.objective,
            goal.expected_tokens or own.expected_tokens,
        )
        if self.goal.deadline is not None:
            self.due = self.since + self.goal.deadline

    def inherit(self, parent: Aim) -> None:
        """A child has its parent's goal, and its deadline at the same time."""
        self.goal = Goal(parent.goal.deadline, parent.goal.objective)
        self.due = parent.due

    @property
    def is_late(self) -> bool:
        """True if the deadline has passed."""
        return self._clock() > self.due

    def precedence(self, generated: int) -> Precedence:
        """Where it stands among its user's instances, having generated so many tokens."""
        rest = self._rest(generated)
        left = self.due - (now := self._clock())
        pace = (now - self.since) / max(1, generated)
        if 0 < left < HASTE * rest * pace:
            return Class.URGENT, self.due
        match self.goal.objective:
            case "latency":
                return Class.LATENCY, rest
            case "throughput":
                return Class.THROUGHPUT, rest
        return Class.USUAL, rest

    def _rest(self, generated: int) -> float:
        """Tokens that it is expected to generate still."""
        if (expected := self.goal.expected_tokens) is not None and generated < expected:
            return expected - generated
        if self._lengths is not None:
            had = generated - self.phases[-1]
            found = self._lengths.mean_beyond(self.user, self.kind(len(self.phases) - 1), had)
            if found is not None:
                return found - had
        return generated

    def kind(self, phase: int) -> str:
        """The name under which what follows a phase is learned."""
        return f"{self.program} {phase}"
