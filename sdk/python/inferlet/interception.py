"""Placement of contexts' pages while the program waits for something outside (InferCept).

::

    from inferlet.interception import interception

    async with interception(ctx, "min-waste", tool="search"):
        answer = await http.get(url)
    ctx.fill(answer.text)

The server's policy chooses whether the pages stay, go to its host memory, or are given up, from
what the tool has taken before, what else runs, and what moving and recomputing cost. It is asked
again while the wait lasts. A program that knows how long it will wait says so (`expected_seconds`):
then the pages are back in time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Literal, TypeAlias

from inferlet import offload, raw
from inferlet._pages import spans
from inferlet._sequence import UNKNOWN
from inferlet.context import Context
from inferlet.errors import PieError

Choice: TypeAlias = Literal["preserve", "discard", "swap"]

# Pages that can't be moved stay where they are: nothing is lost by that but memory.
_HARMLESS = ("busy", "out-of-resources", "limit-exceeded", "unsupported")


class interception:  # noqa: N801 - it reads as a verb: `async with interception(ctx)`
    """A wait during which contexts are not used; afterwards they are as they were.

    Attributes:
        choices: what was done with each context, by the time the wait was over.
    """

    def __init__(
        self,
        contexts: Context | Sequence[Context],
        policy: str = "",
        *,
        tool: str = "",
        expected_seconds: float | None = None,
    ) -> None:
        """Prepares a wait.

        Args:
            contexts: whose pages are not needed meanwhile.
            policy: `preserve`, `discard`, `swap`, `min-waste`, `cheapest`, or the operator's.
            tool: names what is waited for. The durations of waits for one tool are learned
                together, over all instances of this user.
            expected_seconds: how long the wait will last, if this program knows. What was learned
                of the tool counts only if it lasts longer.
        """
        contexts = [contexts] if isinstance(contexts, Context) else contexts
        self._absences = [_Absence(ctx, policy, tool, expected_seconds) for ctx in contexts]
        self._tool = tool
        self._expected = expected_seconds
        self._started = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def choices(self) -> list[Choice]:
        """The choice for each context so far."""
        return [absence.choice for absence in self._absences]

    async def __aenter__(self) -> interception:
        self._started = raw.monotonic_now()
        try:
            for absence in self._absences:
                again = absence.ask(0)
                if again is not None or absence.due(0) is not None:
                    self._tasks.append(asyncio.create_task(self._watch(absence, again)))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        lasted = raw.monotonic_now() - self._started
        await self._end()
        if error is None and self._expected is None:
            raw.note_wait(self._tool, lasted)

    async def _end(self) -> None:
        """Makes all contexts usable again, also if one of them fails or the task is cancelled."""
        async with AsyncExitStack() as stack:
            for absence in reversed(self._absences):
                stack.push_async_callback(absence.end)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, absence: _Absence, again: float | None) -> None:
        """Asks again, as long as something can still be done; and brings the pages back in time."""
        while True:
            due = absence.due(raw.monotonic_now() - self._started)
            if due is not None and (again is None or due <= again):
                await asyncio.sleep(due)
                await absence.end()
                return
            if again is None:
                return
            await asyncio.sleep(again)
            again = absence.ask(raw.monotonic_now() - self._started)


class _Absence:
    """One context during a wait."""

    def __init__(
        self, ctx: Context, policy: str, tool: str, expected_seconds: float | None
    ) -> None:
        self._ctx = ctx
        self._facts: dict[str, str | int] = {"tool": tool, "policy": policy}
        self._expected = expected_seconds
        if expected_seconds is not None:
            self._facts["expected_ns"] = max(0, round(1e9 * expected_seconds))
        self._left: list[int] | None = None  # pages of its own that are still in the pool
        self._chunk = 0  # tokens to compute at once afterwards
        self._restore = 0.0  # seconds until the context is back
        self.choice: Choice = "preserve"

    def ask(self, elapsed_ns: int) -> float | None:
        """Does what the policy says; returns when to ask again, if at all."""
        ctx = self._ctx
        if self._expected is not None and elapsed_ns / 1e9 >= self._expected:
            self._expected = None  # it was wrong: what leaves from now on stays away to the end
        if self._left is None:
            ctx.sequence.settle()
            self._left = ctx.sequence.pages.unshared()
        try:
            advice = json.loads(raw.advise(ctx.queue, spans(self._left), self._wait(elapsed_ns)))
            if advice["choice"] == "swap":
                # The last pages first: those before them may be what others share.
                count = advice["pages"]
                gone = self._left[len(self._left) - count :]
                if gone:
                    raw.swap_out(ctx.queue, spans(gone))
                    self.choice = "swap"
                    self._restore += advice["restore"] * count / len(self._left)
                    del self._left[-count:]
            elif advice["choice"] == "discard" and self.choice == "preserve":
                offload.discard(ctx)
                self.choice, self._chunk = "discard", advice["chunk"]
                self._restore = advice["restore"]
                return None
        except PieError as error:
            if error.code not in _HARMLESS:
                raise
            return None
        return advice["seconds"] if self._left else None

    def _wait(self, elapsed_ns: int) -> str:
        # A context that has begun to go to the host goes on that way.
        can_discard = self.choice == "preserve" and UNKNOWN not in self._ctx.sequence.tokens
        return json.dumps({**self._facts, "elapsed_ns": elapsed_ns, "can_discard": can_discard})

    def due(self, elapsed_ns: int) -> float | None:
        """Seconds until the context should be back; None if it is there, or that is not known."""
        if self._expected is None or self.choice == "preserve":
            return None
        return max(0.0, self._expected - elapsed_ns / 1e9 - self._restore)

    async def end(self) -> None:
        """Makes the context usable again."""
        sequence = self._ctx.sequence
        if self.choice == "swap":
            offload.swap_in(self._ctx)
        elif self.choice == "discard":
            # In chunks that leave the running batch its share of the device. The last one goes with
            # whatever comes next.
            while len(sequence.pending) > self._chunk:
                sequence.forward(sequence.pending[: self._chunk], output=False)
                sequence.pending = sequence.pending[self._chunk :]
                await sequence.synchronize()
