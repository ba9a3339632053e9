"""The trap handler: waits for the next interrupt, with the KV cache where the policy wants it.

AsyncLM, section 5.4. The server decides, as for every wait (`inferlet.interception`); the policy
`cheapest` is the paper's, `min-waste` InferCept's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from inferlet.interception import interception
from inferlet.raw import monotonic_now

if TYPE_CHECKING:
    from inferlet.context import Context


class Action(StrEnum):
    """A policy for a context's pages during a pause."""

    PRESERVE = "preserve"
    SWAP = "swap"
    DISCARD = "discard"


class Arrival(Protocol):
    """A source of events to wait for; an `InterruptManager` is one."""

    @property
    def pending(self) -> int:
        """More than 0 when it is there."""

    async def wait(self) -> None:
        """Returns when it is there, or when nothing will come."""


class TrapHandler:
    """Waits on behalf of a context.

    Attributes:
        actions: how often each action was taken.
        seconds: waited in all.
    """

    def __init__(self, policy: str) -> None:
        """Takes the name of a policy of the server; an empty one is the operator's."""
        self._policy = policy
        self.actions = dict.fromkeys(Action, 0)
        self.seconds = 0.0

    async def wait(
        self, ctx: Context, arrival: Arrival, expected_seconds: float | None, tool: str = ""
    ) -> Action:
        """Returns when it has come, and the context can be used.

        Args:
            ctx: not used meanwhile.
            arrival: what is waited for.
            expected_seconds: how long that will take; None if unknown: the server then looks at
                earlier waits for the tool.
            tool: whose result is probably the next.

        Returns:
            What was done with the pages meanwhile.
        """
        if arrival.pending:
            return Action.PRESERVE
        started = monotonic_now()
        async with interception(
            ctx, self._policy, tool=tool, expected_seconds=expected_seconds
        ) as absence:
            await arrival.wait()
        action = Action(absence.choices[0])
        self.actions[action] += 1
        self.seconds += (monotonic_now() - started) / 1e9
        return action
