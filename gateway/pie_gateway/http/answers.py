"""Answers: JSON at once, or server-sent events; both end with the connection of their client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pie_gateway.http.admission import Exchange
from pie_gateway.http.reading import encode
from pie_gateway.problems import Problem, fault, headers_of
from pie_py.config.gateway import GatewayConfig

log = structlog.get_logger("pie.http")
Value = TypeVar("Value")
EVENT_STREAM = "text/event-stream; charset=utf-8"
EVENT_END = b"\n\n"
DONE = b"data: [DONE]\n\n"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(encode(value), status, headers, "application/json")


def problem_response(problem: Problem) -> Response:
    """An error, as OpenAI's clients read it."""
    return json_response(problem.body, problem.status, headers_of(problem))


def event(value: Any, name: str | None = None) -> bytes:
    """One server-sent event with a value in JSON."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode(value) + EVENT_END


async def while_asked(exchange: Exchange, work: Callable[[], Awaitable[Value]]) -> Value:
    """Does the work unless the client leaves, or it takes too long; then it is cancelled. Raises
    `ClientDisconnect`: the client has left. Raises `Problem`: 504, it took too long.
    """
    seconds = exchange.config.request_seconds
    result: list[Value] = []
    problem: list[Exception] = []
    gone = False

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal gone
        await _until_gone(exchange.request.receive)
        gone = True
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        with anyio.move_on_after(seconds):
            try:
                result.append(await work())
            except Exception as error:  # noqa: BLE001  not to be wrapped by the group
                problem.append(error)
        tasks.cancel_scope.cancel()
    if gone:
        raise ClientDisconnect
    if problem:
        raise problem[0]
    if not result:
        raise timed_out(seconds)
    return result[0]


def timed_out(seconds: float) -> Problem:
    """The request took too long."""
    return Problem(504, f"the request took longer than {seconds:g} s", code="timed_out")


class EventStream(Response):
    """Server-sent events. The source is closed when the client leaves, or takes too long.

    What fails before the first event has its status. If that is long in coming, the headers and a
    comment go ahead of it, for proxies cut off who says nothing; comments follow in any silence.

    A client that does not read holds the source up: nothing waits for it but what the operating
    system and the server's 64 KiB take.
    """

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        config: GatewayConfig,
        on_problem: Callable[[Problem], bytes],
        beat: bytes,
    ) -> None:
        """Takes events, how an error shows once some have been sent, and what breaks a silence."""
        super().__init__(status_code=200, headers={"cache-control": "no-cache"})
        self.headers["content-type"] = EVENT_STREAM
        del self.headers["content-length"]
        self._source = source
        self._config = config
        self._on_problem = on_problem
        self._beat = beat
        self._started = False
        self._sending = anyio.Lock()
        self._sent_at = anyio.current_time()
        self._problem: Problem | ClientDisconnect | None = None  # before the first event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until the source, the client or the time ends. Raises `Problem`: the source has
        failed before anything was sent. Raises `ClientDisconnect`: the client has left before.
        """
        gone = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            tasks.start_soon(self._break_silences, send)
            with anyio.move_on_after(self._config.request_seconds) as limit:
                async with aclosing(self._source) as source:
                    try:
                        async for data in source:
                            await self._send(send, data)
                    except Problem as problem:
                        await self._fail(send, problem)
                    except Exception as error:  # noqa: BLE001  a fault of ours is this request's answer
                        await self._fail(send, fault(error))
                    else:
                        await self._send(send, b"", more=False)
            if limit.cancelled_caught:
                await self._fail(send, timed_out(self._config.request_seconds))
            gone = False
            tasks.cancel_scope.cancel()
        if self._problem is not None:  # raised outside of the group, which would wrap it
            raise self._problem
        if gone and not self._started:
            raise ClientDisconnect

    async def _fail(self, send: Send, problem: Problem) -> None:
        if not self._started:
            self._problem = problem
            return
        log.warning("a stream has failed", reason=problem.message)
        await self._send(send, self._on_problem(problem))
        await self._send(send, b"", more=False)

    async def _break_silences(self, send: Send) -> None:
        quiet = self._config.quiet_seconds
        while True:
            await anyio.sleep_until(self._sent_at + quiet)
            if anyio.current_time() - self._sent_at >= quiet:
                await self._send(send, self._beat)

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._sent_at = anyio.current_time()
        async with self._sending:
            if not self._started:
                self._started = True
                head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                await send(head)
            await send({"type": "http.response.body", "body": data, "more_body": more})


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await _until_gone(receive)
    scope.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def stream_response(
    exchange: Exchange,
    source: AsyncGenerator[bytes, None],
    on_problem: Callable[[Problem], bytes] | None = None,
    beat: bytes = b": waiting\n\n",
) -> Response:
    """Sends what a generator yields, as server-sent events. `on_problem` is how an error shows once
    something has been sent, and the beat what breaks a silence, by default a comment.
    """
    shown = on_problem or (lambda problem: event(problem.body))
    return EventStream(source, exchange.config, shown, beat)
