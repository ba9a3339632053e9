"""Latencies by the formulas of AsyncLM, section 6.3, for independent calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def sync(generation: Sequence[float], execution: Sequence[float]) -> float:
    """Each call is generated, and runs, alone; seconds."""
    return sum(generation) + sum(execution)


def sync_parallel(generation: Sequence[float], execution: Sequence[float]) -> float:
    """All calls are generated, then run at once."""
    return sum(generation) + max(execution)


def asynchronous(generation: Sequence[float], execution: Sequence[float]) -> float:
    """Each call runs from when it and all longer ones have been generated (LPT)."""
    return max(
        own + sum(g for g, other in zip(generation, execution, strict=True) if own <= other)
        for own in execution
    )


FORMULAS = {"sync": sync, "sync_parallel": sync_parallel, "async": asynchronous}


def generated(record: dict[str, Any]) -> list[float]:
    """Seconds that each call took to be generated, from a record of calls in one turn."""
    ends = [
        record["first_token"] - record["token_seconds"],
        *(c["written"] for c in record["calls"]),
    ]
    return [later - earlier for earlier, later in pairwise(ends)]


def executed(record: dict[str, Any]) -> list[float]:
    """Seconds that each call ran."""
    return [call["ended"] - call["started"] for call in record["calls"]]
