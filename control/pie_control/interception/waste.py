"""Wasted memory: tokens held without use, times how long (InferCept, section 4.1), in
token-seconds.

A page-second is `page_size` of them. The formulas are derived in `docs/interception.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from pie_control.interception.costs import Costs


class Choice(Enum):
    """A choice about the pages of a waiting instance."""

    PRESERVE = "preserve"  # they stay
    DISCARD = "discard"  # they are given up and recomputed afterwards
    SWAP = "swap"  # they go to host memory and come back


@dataclass(frozen=True, slots=True)
class Paused:
    """One context that waits for something outside."""

    arrival: int  # order in which programs came; lower is older
    tokens: int  # whose pages are in the pool: C
    remaining: float  # seconds that the wait is expected to last from now on
    can_discard: bool = True  # whether its owner can recompute it
    half: float = math.inf  # seconds after which half of such waits have ended, if that is sooner


@dataclass(frozen=True, slots=True)
class Load:
    """All else that goes on, while choices are made for one step."""

    sequences: int  # that run
    running_tokens: int  # of context that those hold: R
    swap_budget: int  # tokens that may be swapped out in this step without delaying it
    host_room: int  # tokens that host memory can still take
    swap_rate: float = 0.0  # tokens per second that later steps can swap out without delay
    lacking: float = math.inf  # tokens that waiting instances need beyond what is free
    reserve: int = 0  # tokens that should be free for instances to come


def preserve(paused: Paused) -> float:
    """The context is held, unused, for as long as the wait lasts."""
    return paused.remaining * paused.tokens


def discard(paused: Paused, load: Load, costs: Costs) -> float:
    """Chunks are held until the rest is computed, the last one while it is computed itself; the
    running contexts wait for the chunks.
    """
    if not paused.can_discard:
        return math.inf
    chunk = costs.chunk(load.sequences)
    chunks = math.ceil(paused.tokens / chunk)
    seconds = costs.step_time(load.sequences, min(chunk, paused.tokens))
    held = seconds * (chunk * chunks * (chunks - 1) / 2 + paused.tokens)
    slowed = costs.recompute_time(paused.tokens) * load.running_tokens
    return held + slowed


def swap(paused: Paused, costs: Costs) -> float:
    """The context is on its way, half of it on average; within the budget no step waits for it."""
    return costs.swap_time(paused.tokens) * paused.tokens / 2


def stalled_swap(paused: Paused, load: Load, costs: Costs) -> float:
    """Beyond the budget the running contexts wait for the transfer, too."""
    return swap(paused, costs) + costs.swap_time(paused.tokens) * load.running_tokens
