"""Checkpoints of durable instances: the program says its state, and begins again with it.

So a journal is no longer than what an instance has done since then. There is one way to go on from
a state, at once and after a crash: the program's start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pie_control.durable.waits import Call, durable_of, quiet
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.wasm import SUSPENDED, HostFunction

Cut = Callable[[Instance, bytes], None]


def checkpoint_calls(cut: Cut) -> dict[str, Callable[[HostFunction], Call]]:
    """What makes the functions about them, of what has an instance, which waits, begin another life
    with a state.
    """
    checkpoint = partial(_checkpoint, cut)
    return {
        "runtime.last-checkpoint": lambda _: lambda instance: durable_of(instance).past.state,
        "runtime.checkpoint": lambda function: quiet(replace(function, call=checkpoint)),
    }


def _checkpoint(cut: Cut, instance: Instance, state: bytes) -> Any:
    durable = durable_of(instance)
    if durable.goes_over:
        raise durable.departs("runtime.checkpoint")
    if durable.past.topics:
        raise ApiError("busy", "it has subscriptions, whose messages would be lost: end them")
    if any(len(child) == 1 for child in durable.past.children.values()):
        raise ApiError("busy", "children run: wait for them")
    if len(state) > durable.most // 2:
        raise ApiError(
            "limit-exceeded",
            f"a state of {len(state)} bytes; {durable.most // 2} at most (half of"
            " durable.journal_bytes)",
        )
    cut(instance, state)
    return SUSPENDED
