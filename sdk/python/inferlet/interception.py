"""What becomes of contexts while the program waits for something outside (InferCept).

::

    from inferlet.interception import interception

    async with interception(ctx, "min-waste", tool="search"):
        answer = await http.get(url)
    ctx.fill(answer.text)

The server's policy chooses whether the pages stay, go to its host memory, or are given up, from what the
tool has taken before, what else runs, and what moving and recomputing cost. It is asked again while the
wait lasts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, TypeAlias

from inferlet import offload, raw
from inferlet._loop import done
from inferlet._pages import spans
from inferlet.context import UNKNOWN, Context
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
    ) -> None:
        """Prepares a wait.

        Args:
            contexts: whose pages are not needed meanwhile.
            policy: `preserve`, `discard`, `swap`, `min-waste`, or the operator's.
            tool: names what is waited for. The durations of waits for one tool are learned together,
                over all instances of this user.
        """
        contexts = [contexts] if isinstance(contexts, Context) else contexts
        self._absences = [_Absence(ctx, policy, tool) for ctx in contexts]
        self._tool = tool
        self._started = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def choices(self) -> list[Choice]:
        """What was done with each context so far."""
        return [absence.choice for absence in self._absences]

    async def __aenter__(self) -> interception:
        self._started = raw.monotonic_now()
        for absence in self._absences:
            again = absence.ask(0)
            if again is not None:
                self._tasks.append(asyncio.create_task(self._watch(absence, again)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lasted = raw.monotonic_now() - self._started
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if error is None:
            raw.note_wait(self._tool, lasted)
        for absence in self._absences:
            await absence.end()

    async def _watch(self, absence: _Absence, seconds: float) -> None:
        """Asks again, as long as the wait lasts and something can still be done."""
        again: float | None = seconds
        while again is not None:
            await asyncio.sleep(again)
            again = absence.ask(raw.monotonic_now() - self._started)


class _Absence:
    """One context during a wait."""

    def __init__(self, ctx: Context, policy: str, tool: str) -> None:
        self._ctx = ctx
        self._policy = policy
        self._tool = tool
        self._left: list[int] | None = None  # pages of its own that are still in the pool
        self._chunk = 0  # tokens to compute at once afterwards
        self.choice: Choice = "preserve"

    def ask(self, elapsed_ns: int) -> float | None:
        """Does what the policy says; returns when to ask again, if at all."""
        ctx = self._ctx
        if self._left is None:
            ctx._settle()
            shared = ctx._model._shared_pages
            self._left = [page for page in ctx._pages if page not in shared]
        try:
            advice = json.loads(raw.advise(ctx._queue, spans(self._left), self._wait(elapsed_ns)))
            if advice["choice"] == "swap":
                # The last pages first: those before them may be what others share.
                count = advice["pages"]
                gone = self._left[len(self._left) - count :]
                if gone:
                    raw.swap_out(ctx._queue, spans(gone))
                    self.choice = "swap"
                    del self._left[-count:]
            elif advice["choice"] == "discard" and self.choice == "preserve":
                offload.discard(ctx)
                self.choice, self._chunk = "discard", advice["chunk"]
                return None
        except PieError as error:
            if error.code not in _HARMLESS:
                raise
            return None
        return advice["seconds"] if self._left else None

    def _wait(self, elapsed_ns: int) -> str:
        # A context that has begun to go to the host goes on that way.
        can_discard = self.choice == "preserve" and UNKNOWN not in self._ctx._tokens
        facts = {"tool": self._tool, "policy": self._policy, "elapsed_ns": elapsed_ns}
        return json.dumps({**facts, "can_discard": can_discard})

    async def end(self) -> None:
        """Makes the context usable again."""
        ctx = self._ctx
        if self.choice == "swap":
            offload.swap_in(ctx)
        elif self.choice == "discard":
            # In chunks that leave the running batch its share of the device. The last one goes with
            # whatever comes next.
            while len(ctx._pending) > self._chunk:
                chunk = ctx._pending[: self._chunk]
                ctx._forward(chunk, False)
                ctx._pending = ctx._pending[self._chunk :]
                await done(raw.synchronize(ctx._queue))
