"""The trap handler: waits for the next interrupt and decides what becomes of the KV cache meanwhile.

AsyncLM, section 5.4. The decision is a policy: a function of a `Pause`, of which `cheapest` is the paper's,
or the name of one of the server's (InferCept), which sees what else runs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from inferlet import offload
from inferlet.errors import PieError
from inferlet.interception import interception
from inferlet.raw import monotonic_now

if TYPE_CHECKING:
    from inferlet.context import Context

AHEAD = 1.5  # times of what it costs that pages are brought back before an interrupt is expected
RETRY_SECONDS = 0.02
RETRIES = 50  # of bringing pages back while the pool is full; then they are computed anew


class Action(StrEnum):
    """What becomes of a context's pages during a pause."""

    PRESERVE = "preserve"
    SWAP = "swap"
    DISCARD = "discard"


@dataclass(frozen=True)
class Pause:
    """What a policy decides on.

    Attributes:
        tokens: of the context.
        pages: that it holds.
        expected_seconds: until the next interrupt; None if nobody knows.
        costs: what moving and recomputing costs, as `offload.costs` tells; empty if unmeasured.
    """

    tokens: int
    pages: int
    expected_seconds: float | None
    costs: Mapping[str, Any] = field(default_factory=dict)


Policy: TypeAlias = Callable[[Pause], Action]


class Arrival(Protocol):
    """What is waited for; an `InterruptManager` is one."""

    @property
    def pending(self) -> int:
        """More than 0 when it is there."""

    async def wait(self) -> None:
        """Returns when it is there, or when nothing will come."""


def preserve(pause: Pause) -> Action:
    """Keeps the pages."""
    return Action.PRESERVE


def swap(pause: Pause) -> Action:
    """Moves the pages to the server's host memory."""
    return Action.SWAP


def discard(pause: Pause) -> Action:
    """Gives the pages up; they are computed anew afterwards."""
    return Action.DISCARD


def cheapest(pause: Pause) -> Action:
    """Keeps the pages if moving and recomputing both take longer than the wait, else the faster one.

    (AsyncLM, section 5.4.) A wait of unknown length counts as a long one.
    """
    swapping, recomputing = swap_seconds(pause), recompute_seconds(pause)
    if swapping is None and recomputing is None:
        return Action.PRESERVE
    best = min(s for s in (swapping, recomputing) if s is not None)
    if pause.expected_seconds is not None and best > pause.expected_seconds:
        return Action.PRESERVE
    return Action.DISCARD if best == recomputing else Action.SWAP


def swap_seconds(pause: Pause) -> float | None:
    """Seconds to move the pages out and back; None where they can't be moved."""
    ways = [pause.costs.get(name) for name in ("swap_out", "swap_in")]
    if not all(ways):
        return None
    size = pause.pages * pause.costs["page_bytes"]
    return float(sum(way["seconds"] + size / way["bytes_per_second"] for way in ways if way))


def recompute_seconds(pause: Pause) -> float | None:
    """Seconds to compute the tokens anew; None where that was not measured."""
    prefill = pause.costs.get("prefill")
    if not prefill or not prefill.get("fit"):
        return None
    constant, linear, square = prefill["fit"]
    return float(constant + linear * pause.tokens + square * pause.tokens**2)


POLICIES: dict[str, Policy | str] = {
    "min-waste": "min-waste",
    "preserve": preserve,
    "swap": swap,
    "discard": discard,
    "cheapest": cheapest,
}


class TrapHandler:
    """Waits on behalf of a context.

    Attributes:
        actions: how often each action was taken.
        seconds: waited in all.
    """

    def __init__(self, policy: Policy | str, costs: Mapping[str, Any]) -> None:
        """Takes a policy, or the name of one of the server's, and what it is told of costs."""
        self._policy = policy
        self._costs = costs
        self.actions = dict.fromkeys(Action, 0)
        self.seconds = 0.0

    async def wait(
        self, ctx: Context, arrival: Arrival, expected_seconds: float | None, tool: str = ""
    ) -> Action:
        """Returns when it has come, and the context's pages are where they can be used.

        Args:
            ctx: not used meanwhile.
            arrival: what is waited for.
            expected_seconds: how long that will take; None if nobody knows.
            tool: from whom it comes, probably; the server learns how long that takes.

        Returns:
            What was done with the pages meanwhile.
        """
        if arrival.pending:
            return Action.PRESERVE
        started = monotonic_now()
        if isinstance(self._policy, str):
            async with interception(ctx, self._policy, tool=tool) as absence:
                await arrival.wait()
            action = Action(absence.choices[0])
        else:
            pages = -(-ctx.seq_len // ctx.page_size)
            pause = Pause(ctx.seq_len, pages, expected_seconds, self._costs)
            action = self._take(self._policy(pause), ctx)
            if action is not Action.PRESERVE:
                await self._wait_without_pages(ctx, arrival, pause, action)
            await arrival.wait()
        self.actions[action] += 1
        self.seconds += (monotonic_now() - started) / 1e9
        return action

    async def _wait_without_pages(
        self, ctx: Context, arrival: Arrival, pause: Pause, action: Action
    ) -> None:
        """Waits until it has come, or until it is time to have the pages ready for it."""
        cost = (swap_seconds if action is Action.SWAP else recompute_seconds)(pause)
        delay = None  # until the interrupt, whenever it comes
        if pause.expected_seconds is not None and cost is not None:
            delay = max(0.0, pause.expected_seconds - AHEAD * cost)
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await arrival.wait()
        if action is Action.SWAP:
            await _bring_back(ctx)
        elif not arrival.pending:
            await ctx.flush()  # else it is computed anew together with the interrupt

    def _take(self, action: Action, ctx: Context) -> Action:
        """Does what the policy says; keeps the pages where that can't be done."""
        try:
            if action is Action.SWAP:
                offload.swap_out(ctx)
            elif action is Action.DISCARD:
                offload.discard(ctx)
        except (PieError, ValueError) as error:
            if isinstance(error, PieError) and error.code not in _HARMLESS:
                raise
            return Action.PRESERVE
        return action


_HARMLESS = ("busy", "out-of-resources", "limit-exceeded", "unsupported")


async def _bring_back(ctx: Context) -> None:
    for _ in range(RETRIES):
        try:
            offload.swap_in(ctx)
        except PieError as error:
            if error.code != "out-of-resources":
                raise
        else:
            return
        await asyncio.sleep(RETRY_SECONDS)
    offload.discard(ctx)
