"""WebSockets: admitted as requests are, and closed with the reason of a problem."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_gateway.http.admission import Admission, Exchange
from pie_gateway.http.keys import KEY_PROTOCOL
from pie_gateway.problems import Problem

PROTOCOL = "pie"  # which is what a browser is answered that offers it beside its key
REFUSED, FAILED = 1008, 1011  # of RFC 6455
REASON_BYTES = 120


def socket_route(
    path: str, serve: Callable[[WebSocket, Exchange], Awaitable[None]]
) -> WebSocketRoute:
    """The route of a path whose WebSockets are served by a function once they are admitted."""

    async def connected(socket: WebSocket) -> None:
        admission: Admission = socket.app.state.admission
        socket.state.path = path
        try:
            async with admission.exchange(socket) as exchange:
                offers = socket.headers.get("sec-websocket-protocol", "")
                await socket.accept(PROTOCOL if KEY_PROTOCOL in offers else None)
                await serve(socket, exchange)
        except Problem as problem:
            await socket.close(FAILED if problem.status >= 500 else REFUSED, _reason(problem))
        except WebSocketDisconnect:
            pass

    return WebSocketRoute(path, connected)


def _reason(problem: Problem) -> str:
    return problem.message.encode()[:REASON_BYTES].decode(errors="ignore")
