"""`/v1/inferlets/{program}/session`: a WebSocket, messages both ways.

The first frame from the client is a `LaunchRequest`; each later one is a message to the instance,
text or bytes. The server sends the instance's events in JSON; its bytes as they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_gateway.http.door import Door
from pie_gateway.http.reading import parse
from pie_gateway.inferlets.running import asked, launched, told_by
from pie_gateway.problems import Problem
from pie_gateway.schemas.inferlets import Blob, LaunchRequest
from pie_py.client import Client, Instance

PATH = "/v1/inferlets/{program}/session"
FIRST_SECONDS = 30.0  # until the first frame
REFUSED, FAILED = 1008, 1011  # of RFC 6455
REASON_BYTES = 120


async def session(socket: WebSocket) -> None:
    """Serves one connection; the instance ends with it."""
    door: Door = socket.app.state.door
    socket.state.path = PATH
    try:
        backend = (await door.enter(socket)).backend
    except Problem as problem:
        await socket.close(REFUSED, _reason(problem))
        return
    await socket.accept()
    with backend.used():
        try:
            await _serve(socket, backend.client)
        except Problem as problem:
            await socket.close(FAILED if problem.status >= 500 else REFUSED, _reason(problem))
        except WebSocketDisconnect:
            pass


async def _serve(socket: WebSocket, client: Client) -> None:
    with anyio.move_on_after(FIRST_SECONDS) as first:
        frame = await socket.receive()
    if first.cancelled_caught:
        raise Problem(408, "the first frame has not come")
    if frame["type"] == "websocket.disconnect":
        return
    wanted = parse((frame.get("text") or "").encode(), LaunchRequest)
    problem: list[Exception] = []
    async with _instance(socket, client, wanted) as instance:
        for message in wanted.messages:
            await asked(instance.send(message))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_hear, socket, instance, tasks.cancel_scope)
            try:
                await _tell(socket, instance)
            except (Problem, WebSocketDisconnect) as error:  # raised outside of the group
                problem.append(error)
            tasks.cancel_scope.cancel()
    if problem:
        raise problem[0]


@asynccontextmanager
async def _instance(
    socket: WebSocket, client: Client, wanted: LaunchRequest
) -> AsyncIterator[Instance]:
    """The instance, for the connection's line of the log and its span, too."""
    async with launched(client, socket.path_params["program"], wanted) as instance:
        socket.state.instances.append(instance.id)
        yield instance
    if socket.state.span is not None:
        socket.state.span.instance_over(client, instance.id)


async def _tell(socket: WebSocket, instance: Instance) -> None:
    async for told in told_by(instance):
        if isinstance(told, Blob):
            await socket.send_bytes(told.base64)
        else:
            await socket.send_text(msgspec.json.encode(told).decode())
    await socket.close()


async def _hear(socket: WebSocket, instance: Instance, scope: anyio.CancelScope) -> None:
    while True:
        frame = await socket.receive()
        if frame["type"] == "websocket.disconnect":
            scope.cancel()
            return
        text = frame.get("text")
        try:
            await asked(instance.send(frame["bytes"] if text is None else text))
        except Problem:
            return  # it has ended; how, it tells itself


def _reason(problem: Problem) -> str:
    return problem.message.encode()[:REASON_BYTES].decode(errors="ignore")
