"""The executor: runs calls at once, concurrently, and hands over what comes of them as values.

AsyncLM, section 5.2. A call starts at once; over the limit it waits until another ends. Whatever
goes wrong, an unknown function, wrong arguments, a time-out or an exception, is an `Outcome`.
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call's outcome.

    Attributes:
        number: of the call, as `start` gave it.
        identifier: of the call; empty for one that expects no answer.
        name: of the function, empty if the call could not be read.
        text: the value as it stands in an interrupt: JSON, or `error: ...`.
        failed: whether it is an error.
        started: seconds of the monotonic clock when it began to run.
        length: characters of the whole result if `text` is only its start, else 0.
    """

    number: int
    identifier: str
    name: str
    text: str
    failed: bool
    started: float
    length: int = 0


class _Running:
    def __init__(self, identifier: str, name: str, expected: float, since: float) -> None:
        self.identifier = identifier
        self.name = name
        self.expected = expected  # seconds
        self.since = since  # of the monotonic clock
        self.task: asyncio.Task[None] | None = None


class Executor:
    """Runs the calls of one generation.

    Attributes:
        tools: by name.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        on_done: Callable[[Outcome], None],
        *,
        limit: int = 16,
        timeout: float = 30.0,
    ) -> None:
        """Nothing runs yet.

        Args:
            tools: those that may be called.
            on_done: told of every outcome, once for each call, never from within `start`.
            limit: calls that run at once.
            timeout: seconds that a call may take, unless its tool says otherwise.
        """
        self.tools = {tool.name: tool for tool in tools}
        self._on_done = on_done
        self._slots = asyncio.Semaphore(limit)
        self._timeout = timeout
        self._running: dict[int, _Running] = {}
        self._count = 0

    @property
    def outstanding(self) -> int:
        """Calls whose answer is expected, and not there yet."""
        return sum(bool(one.identifier) for one in self._running.values())

    def next_expected(self) -> tuple[float | None, str]:
        """Seconds to the next outcome, by expected times, and its tool; None if nothing runs."""
        return min(self._left(), default=(None, ""))

    def last_expected(self) -> tuple[float | None, str]:
        """As `next_expected`, of the last outcome."""
        return max(self._left(), default=(None, ""))

    def _left(self) -> list[tuple[float, str]]:
        now = monotonic_now() / 1e9
        answers = [one for one in self._running.values() if one.identifier]
        return [(max(0.0, one.expected - now + one.since), one.name) for one in answers]

    def start(self, identifier: str, text: str) -> tuple[int, str]:
        """Starts a call.

        Args:
            identifier: empty if no answer is expected.
            text: the call.

        Returns:
            The call's number, and the function's name, empty if the text is no call.
        """
        self._count += 1
        number = self._count
        name, problem, call = "", "", None
        try:
            call = parse_call(text)
            name = call.name
        except CallError as error:
            problem = str(error)
        tool = self.tools.get(name)
        expected = 0.0 if tool is None else tool.seconds
        running = _Running(identifier, name, expected, monotonic_now() / 1e9)
        self._running[number] = running
        work = self._work(number, identifier, call, tool, problem)
        running.task = asyncio.get_running_loop().create_task(work)
        return number, name

    async def finish(self) -> None:
        """Waits for the calls that expect no answer."""
        rest = [one.task for one in self._running.values() if not one.identifier and one.task]
        await asyncio.gather(*rest)

    def cancel(self) -> None:
        """Gives up all calls that run; their outcomes don't come."""
        for running in list(self._running.values()):
            if running.task is not None:
                running.task.cancel()
        self._running.clear()

    async def _work(
        self, number: int, identifier: str, call: Call | None, tool: Tool | None, problem: str
    ) -> None:
        async with self._slots:
            started = monotonic_now() / 1e9
            failed, length = False, 0
            try:
                value = await self._value(call, tool, problem)
                text = write_value(value.text if isinstance(value, Cut) else value)
                length = value.length if isinstance(value, Cut) else 0
            except Exception as error:
                failed, text = True, whole(f"error: {_message(error)}")
        if self._running.pop(number, None) is not None:
            name = "" if call is None else call.name
            self._on_done(Outcome(number, identifier, name, text, failed, started, length))

    async def _value(self, call: Call | None, tool: Tool | None, problem: str) -> Any:
        if call is None:
            raise ToolError(problem)
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
