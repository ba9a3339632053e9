"""`/v1/inferlets/{program}/session`: a WebSocket, messages both ways.

The first frame from the client is a `LaunchRequest`; each later one is a message to the instance,
text or bytes. The server sends the instance's events in JSON; its bytes as they are.
"""

from __future__ import annotations

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_gateway.http.admission import Exchange
from pie_gateway.inferlets.running import events_of, launch_request, launched
from pie_gateway.problems import Problem, asked
from pie_gateway.schemas.inferlets import Blob
from pie_py.client import Instance

PATH = "/v1/inferlets/{program}/session"


async def session(socket: WebSocket, exchange: Exchange) -> None:
    """Serves one connection; the instance ends with it."""
    with anyio.move_on_after(exchange.config.body_seconds) as first:
        frame = await socket.receive()
    if first.cancelled_caught:
        raise Problem(408, "the first frame has not come")
    if frame["type"] == "websocket.disconnect":
        return
    first_text = (frame.get("text") or "").encode()
    socket.state.size = len(first_text)
    wanted = await exchange.by_size(launch_request, first_text)
    problem: list[Exception] = []
    async with launched(exchange, wanted) as instance, anyio.create_task_group() as tasks:
        tasks.start_soon(_receive, socket, instance, tasks.cancel_scope)
        try:
            await _send(socket, instance)
        except (Problem, WebSocketDisconnect) as error:  # raised outside of the group
            problem.append(error)
        tasks.cancel_scope.cancel()
    if problem:
        raise problem[0]


async def _send(socket: WebSocket, instance: Instance) -> None:
    async for each in events_of(instance):
        if isinstance(each, Blob):
            await socket.send_bytes(each.base64)
        else:
            await socket.send_text(msgspec.json.encode(each).decode())
    await socket.close()


async def _receive(socket: WebSocket, instance: Instance, scope: anyio.CancelScope) -> None:
    while True:
        frame = await socket.receive()
        if frame["type"] == "websocket.disconnect":
            scope.cancel()
            return
        text = frame.get("text")
        try:
            await asked(instance.send(frame["bytes"] if text is None else text))
        except Problem:
            return  # it has ended, and its last event says how
