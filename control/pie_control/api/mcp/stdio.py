"""MCP over the standard streams of a process, within bounds.

Messages are lines of JSON-RPC (MCP specification, "Transports: stdio"). The SDK's
`mcp.client.stdio` is not used because it cannot be bounded from outside: it owns the process, and
collects a line of any length in memory. A server that goes wrong must not take this process along.
Nor does it say why a server is gone (`on_end`), or read its standard error otherwise than into a
file.
"""

from __future__ import annotations

import json
import os
import re
import signal
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE
from typing import Any

import anyio
import structlog
import trio
from mcp.client._transport import TransportStreams
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from pie_control.errors import ApiError
from pie_py.config.mcp import McpServerConfig
from pie_py.config.printable import one_line
from pie_py.config.processes import GroupTime

log = structlog.get_logger("pie.mcp")

GRACE_SECONDS = 2.0  # after its input or output has ended, and again after SIGTERM
LAST_WORDS = 10  # lines
LOG_LINE_BYTES = 2000
SKIPPED_BYTES = 64 << 20  # of one line

_HEAD_BYTES = 256
_ID = re.compile(rb'"id" *: *"?(\d{1,15})"? *[,}]')  # our requests have numbers


class LineTooLong(Exception):
    """A line does not end."""


@asynccontextmanager
async def stdio_transport(
    name: str,
    config: McpServerConfig,
    on_message: Callable[[], None],
    on_end: Callable[[str], None],
    connected: Callable[[], bool],
) -> AsyncGenerator[TransportStreams, None]:
    """Runs a server's command; the streams carry its messages, and the log has its standard error.

    `on_message` is called for every message, `on_end` with the reason when no message will come any
    more; `connected` tells whether the server has started.

    Raises:
        OSError: if the command cannot be started.
    """
    assert config.command is not None
    process = await trio.lowlevel.open_process(
        [config.command, *config.args],
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**get_default_environment(), **config.env},
        cwd=config.folder,
        # so that all its processes can be ended, and Ctrl-C does not reach it
        start_new_session=True,
    )
    pipes = _Pipes(name, config.message_bytes, process, on_message, on_end)
    async with trio.open_nursery() as nursery:
        for task in (pipes.read, pipes.write, pipes.watch, pipes.read_log):
            nursery.start_soon(task)
        nursery.start_soon(pipes.limit_start, config.start_seconds, connected)
        try:
            yield pipes.for_session, pipes.from_session
        finally:
            with trio.CancelScope(shield=True):
                await pipes.close()
                await _stop(process)
            nursery.cancel_scope.cancel()


class _Pipes:
    """The tasks between a process's standard streams and the streams of a session."""

    def __init__(
        self,
        name: str,
        most: int,
        process: trio.Process,
        on_message: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._name = name
        self._most = most  # bytes of a message
        self._process = process
        self._on_message = on_message
        self._on_end = on_end
        to_session, for_session = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        from_session, to_server = anyio.create_memory_object_stream[SessionMessage](0)
        self._to_session, self.for_session = to_session, for_session
        self.from_session, self._to_server = from_session, to_server
        self._written, self._read_out = trio.Event(), trio.Event()
        self._said: deque[str] = deque(maxlen=LAST_WORDS)  # to standard error
        self._open: set[int] = set()  # requests without an answer
        self._last = -1  # request

    async def close(self) -> None:
        """Ends the session's side, after what it has sent is written."""
        self.for_session.close()
        self.from_session.close()
        with trio.move_on_after(0.5):
            await self._written.wait()

    async def read(self) -> None:
        """Passes messages of the server on."""
        # The reason is sent before the stream closes: the calls under way end with it.
        async with self._to_session:
            self._on_end(await self._read_messages())
            self._read_out.set()

    async def _read_messages(self) -> str:
        """Passes messages on until there are no more; returns why."""
        assert self._process.stdout is not None
        try:
            async for line, whole in lines(self._process.stdout, self._most):
                self._on_message()
                for message in self._messages(line.removeprefix(BOM_UTF8), whole):
                    await self._to_session.send(SessionMessage(message))
        except LineTooLong as error:
            return str(error)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            return f"its output broke: {error}"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return "the session is over"
        reason = await self._why("it has closed its output")
        status, said = self._process.returncode, list(self._said)
        log.warning("mcp server ended", name=self._name, status=status, said=said)
        return reason

    def _messages(self, line: bytes, whole: bool) -> list[JSONRPCMessage]:
        """The message of a line. If that cannot be read, an error for each request that it may be
        an answer to, with data of ours, which no server can send.
        """
        error = None
        why = f"its answer has more than {self._most} bytes (`message_bytes` of its configuration)"
        if whole:
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError as caught:
                why = f"its answer cannot be read: {caught.errors()[0]['msg']}"
            else:
                if not isinstance(message, JSONRPCResponse | JSONRPCError):
                    return [message]
                if _number(message.id) in range(self._last + 1):
                    self._open.discard(_number(message.id))
                    return [message]
                error = getattr(message, "error", None)  # of a request that it could not read
                why = f"no request has the id of its answer, {str(message.id)[:50]!r}"
        fault = ApiError("remote-failed" if whole else "limit-exceeded", f"{self._name}: {why}")
        error = error or ErrorData(code=PARSE_ERROR, message=why, data=fault)
        meant = self._meant(line, whole)
        self._open -= meant
        return [JSONRPCError(jsonrpc="2.0", id=each, error=error) for each in meant]

    def _meant(self, line: bytes, whole: bool) -> set[int]:
        """The open requests that an unreadable line answers: the named ones, or the only one."""
        try:
            value = json.loads(line.decode(errors="replace") if whole else "")
            parts = value if isinstance(value, list) else [value]
            named = {_number(each.get("id")) for each in parts if "method" not in each}
        except Exception:  # noqa: BLE001  no JSON, or no objects
            found = _ID.search(line, 0, _HEAD_BYTES)
            named = {int(found[1])} if found else set()
        if not named & self._open and len(self._open) == 1 and b"jsonrpc" in line:
            return {*self._open}
        return named & self._open

    def _note(self, message: JSONRPCMessage) -> None:
        """Which requests are open."""
        if isinstance(message, JSONRPCRequest):
            self._open.add(_number(message.id))
            self._last = max(self._last, *self._open)
        elif isinstance(message, JSONRPCNotification) and message.method.endswith("/cancelled"):
            self._open.discard(_number((message.params or {}).get("requestId")))

    async def _why(self, seen: str) -> str:
        """The process's end, if that explains what has been seen of it."""
        with trio.move_on_after(GRACE_SECONDS):
            await self._process.wait()
        if self._process.returncode is None:
            return seen
        return f"its process has ended with status {self._process.returncode}"

    async def watch(self) -> None:
        """Ends the connection with the process, though its children may hold its output open."""
        await self._process.wait()
        with trio.move_on_after(GRACE_SECONDS):
            await self._read_out.wait()
            return
        self._on_end(await self._why("it has ended"))
        await self._to_session.aclose()

    async def limit_start(self, seconds: float, connected: Callable[[], bool]) -> None:
        """Ends a connection that is not made within seconds of the server's CPU, or idle."""
        time = GroupTime(self._process.pid)
        goes_on = True
        while goes_on and time.used < seconds:
            await trio.sleep(seconds)
            if connected():
                return
            goes_on = time.goes_on()
        self._on_end(f"it did not start within {seconds:g} s")
        await self._to_session.aclose()

    async def write(self) -> None:
        """Writes the session's messages to the server."""
        try:
            async with self._to_server:  # open until the reason is sent, as in `read`
                await self._write_messages()
        finally:
            self._written.set()

    async def _write_messages(self) -> None:
        assert self._process.stdin is not None
        try:
            async for message in self._to_server:
                self._note(message.message)
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await self._process.stdin.send_all(one_line(text.encode()) + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._on_end(await self._why("it takes no input any more"))
            await self._to_session.aclose()

    async def read_log(self) -> None:
        """Logs what the server writes to its standard error, and has the last lines."""
        assert self._process.stderr is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, LineTooLong):
            async for line, _ in lines(self._process.stderr, LOG_LINE_BYTES):
                text = line.decode(errors="replace")
                self._said.append(text)
                log.debug("mcp server says", name=self._name, text=text)


async def lines(
    stream: trio.abc.ReceiveStream, most: int
) -> AsyncGenerator[tuple[bytes, bool], None]:
    """The lines of a stream without their ends, empty ones left out; and whether each is whole.

    Of a line of more than `most` bytes the head comes, as soon as there is so much of it; the
    rest is dropped.

    Raises:
        LineTooLong: if the rest does not end, either.
    """
    line = bytearray()
    skipped = 0  # bytes of a line whose head has been given
    async for chunk in stream:
        start = 0
        while start < len(chunk):
            end = chunk.find(b"\n", start)
            part = chunk[start:] if end < 0 else chunk[start:end]
            start = len(chunk) if end < 0 else end + 1
            if skipped:
                skipped += len(part)
            else:
                line += part
            if len(line) > most:
                yield bytes(line[:most]), False
                skipped = len(line)
                line.clear()
            if skipped > SKIPPED_BYTES:
                raise LineTooLong(f"it sent a line of more than {SKIPPED_BYTES} bytes")
            if end < 0:
                continue
            if line.strip():
                yield bytes(line), True
            line.clear()
            skipped = 0


def _number(name: Any) -> int:
    """The number of a request by its id, which servers may write as text; -1 is of no request."""
    return int(name) if str(name).isdecimal() and len(str(name)) < 16 else -1


async def _stop(process: trio.Process) -> None:
    """Ends a server and the processes that it started: asks, then insists. Bounded in time."""
    if process.stdin is not None:
        await process.stdin.aclose()
    with trio.move_on_after(GRACE_SECONDS):
        await process.wait()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        _signal_group(process, number)
        with trio.move_on_after(GRACE_SECONDS):
            await process.wait()
    _signal_group(process, signal.SIGKILL)  # what it has left behind
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def _signal_group(process: trio.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
