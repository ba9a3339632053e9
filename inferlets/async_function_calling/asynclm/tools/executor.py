"""The executor: runs calls at once, concurrently, and hands over what comes of them as values.

AsyncLM, section 5.2. A call starts at once; over the limit it waits until another ends. Whatever
goes wrong, an unknown function, wrong arguments, a time-out or an exception, becomes a value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from asynclm.cml.calls import Call, CallError, parse_call, write_value
from asynclm.cml.dialect import whole
from asynclm.tools.tool import Cut, Tool, ToolError
from inferlet.errors import PieError
from inferlet.raw import monotonic_now

LONGEST_ERROR = 500  # characters of an exception's text that the model gets to see


@dataclass(eq=False)
class CallRecord:
    """One call, as the model wrote it; times are seconds since the generation began."""

    identifier: str  # empty if it expects no answer
    name: str
    call: str
    written: float = 0.0  # when its block was closed
    result: str | None = None  # the value as text, None if it never came
    failed: bool = False  # whether that is an error
    started: float | None = None  # when it began to run
    ended: float | None = None  # when its result was there
    delivered: float | None = None  # when that was put into the context


class Executor:
    """Runs the calls of one generation, at most `limit` at once, of `tools` by name."""

    def __init__(
        self,
        tools: Iterable[Tool],
        on_done: Callable[[CallRecord, str, int], None],
        *,
        limit: int = 16,
        timeout: float = 30.0,
    ) -> None:
        """Nothing runs yet; a call may take `timeout` seconds, unless its tool says otherwise.

        `on_done` gets each call once, never from within `start`: with its value as it stands in an
        interrupt, JSON or `error: ...`, and the characters of the whole value if that is cut, or 0.
        """
        self.tools = {tool.name: tool for tool in tools}
        self._on_done = on_done
        self._slots = asyncio.Semaphore(limit)
        self._timeout = timeout
        self._running: dict[CallRecord, tuple[asyncio.Task[None], float]] = {}  # and when it is due

    @property
    def outstanding(self) -> int:
        """Calls whose answer is expected, and not there yet."""
        return sum(bool(call.identifier) for call in self._running)

    def expected(self) -> list[tuple[float, str]]:
        """Seconds to each outstanding outcome, by expected times, and its tool, in that order."""
        now = monotonic_now() / 1e9
        running = self._running.items()
        return sorted((max(0.0, due - now), c.name) for c, (_, due) in running if c.identifier)

    def start(self, record: CallRecord) -> None:
        """Starts a call, and notes the function's name, if the text is a call."""
        call: Call | CallError
        try:
            parsed = parse_call(record.call)
            call, record.name = parsed, parsed.name
        except CallError as error:
            call = error
        tool = self.tools.get(record.name)
        due = monotonic_now() / 1e9 + (0.0 if tool is None else tool.seconds)
        task = asyncio.get_running_loop().create_task(self._work(record, call, tool))
        self._running[record] = task, due

    async def finish(self) -> None:
        """Waits for the calls that expect no answer."""
        rest = [task for call, (task, _) in self._running.items() if not call.identifier]
        await asyncio.gather(*rest)

    def cancel(self) -> None:
        """Gives up all calls that run; their outcomes don't come."""
        for task, _ in self._running.values():
            task.cancel()
        self._running.clear()

    async def _work(self, record: CallRecord, call: Call | CallError, tool: Tool | None) -> None:
        async with self._slots:
            started = monotonic_now() / 1e9
            failed, length = False, 0
            try:
                value = await self._value(call, tool)
                text = write_value(value.text if isinstance(value, Cut) else value)
                length = value.length if isinstance(value, Cut) else 0
            except Exception as error:
                failed, text = True, whole(f"error: {_message(error)}")
        if self._running.pop(record, None) is not None:
            record.failed, record.started = failed, started
            self._on_done(record, text, length)

    async def _value(self, call: Call | CallError, tool: Tool | None) -> Any:
        if isinstance(call, CallError):
            raise call
        if tool is None:
            raise ToolError(f"there is no function {call.name}")
        arguments = tool.arguments(call)
        timeout = self._timeout if tool.timeout is None else tool.timeout
        clock = asyncio.timeout(timeout)
        try:
            async with clock:
                return await tool.run(arguments)
        except TimeoutError:
            if not clock.expired():
                raise
            raise ToolError(f"timeout after {timeout:g} s") from None


def _message(error: Exception) -> str:
    text = str(error)
    if not isinstance(error, ToolError | CallError | PieError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}..."
