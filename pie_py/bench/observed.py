"""Helpers of observers: to put a function around a public one, and to count tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pie_py.wire.plan import Again, NextDist, Plan, Sample


def replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Puts what `change` makes of a public function of a module or class in its place.

    Raises:
        AttributeError: if it is not there.
        ValueError: if it is private.
    """
    if name.startswith("_") and not name.endswith("__"):
        raise ValueError(f"{name} is private: others may rename it without a thought of benchmarks")
    setattr(owner, name, change(getattr(owner, name)))


def after_plans_sent(link: Any, on_plan: Callable[[int, int], None]) -> None:
    """Has `WorkerLink` report each plan sent: its number, and the tokens asked for so far."""
    tokens = 0

    def order(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(link: Any, message: Any) -> None:
            nonlocal tokens
            function(link, message)
            if isinstance(message, Plan):
                tokens += tokens_of(message)
                on_plan(message.id, tokens)

        return run

    replace(link, "order", order)


def after_plans_decoded(worker: Any, on_plan: Callable[[int, int], None]) -> None:
    """Has the worker report each plan received: its number, and the tokens asked for before."""
    tokens = 0

    def decode(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(frame: Any) -> Any:
            nonlocal tokens
            message = function(frame)
            if isinstance(message, Plan):
                on_plan(message.id, tokens)
                tokens += tokens_of(message)
            return message

        return run

    replace(worker, "decode", decode)


def tokens_of(plan: Plan) -> int:
    """How many next tokens a plan asks for."""
    tokens = sum(b.embeds.size for b in plan.batches if isinstance(b, NextDist | Sample))
    further = (np.count_nonzero(b.slots >= 0) for b in plan.batches if isinstance(b, Again))
    return tokens + int(sum(further))
