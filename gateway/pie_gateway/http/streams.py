"""Streams that begin once there is something to send, so that errors before it have a status."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response

from pie_gateway.http.answers import EventStream, event, while_connected
from pie_gateway.http.door import Exchange
from pie_gateway.problems import Problem

Value = TypeVar("Value")
DONE = b"data: [DONE]\n\n"


async def while_asked(exchange: Exchange, work: Callable[[], Awaitable[Value]]) -> Value:
    """Does the work unless the client leaves, or it takes too long.

    Raises:
        ClientDisconnect: the client has left.
        Problem: 504, it took too long.
    """
    return await while_connected(exchange.request, exchange.config.request_seconds, work)


async def stream_response(
    exchange: Exchange,
    source: AsyncGenerator[bytes, None],
    on_problem: Callable[[Problem], bytes] | None = None,
) -> Response:
    """Sends what a generator yields, as server-sent events.

    Raises:
        Problem: the source has failed before its first event.
        ClientDisconnect: the client has left before.
    """
    first = await while_asked(exchange, lambda: anext(source))
    return EventStream(
        _resumed(first, source), exchange.config.request_seconds, on_problem or _problem_event
    )


async def _resumed(
    first: bytes, source: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for data in source:
            yield data
    finally:
        await source.aclose()


def _problem_event(problem: Problem) -> bytes:
    return event(problem.body)
