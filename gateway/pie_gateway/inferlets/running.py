"""Runs of programs over HTTP: JSON in, JSON or events out; or a WebSocket, messages both ways."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import anyio
import msgspec
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_gateway.backend.generation import end
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import event, json_response, stream_response, while_asked
from pie_gateway.http.connections import STATE
from pie_gateway.http.reading import parse
from pie_gateway.problems import Problem, asked, of_client, of_text
from pie_gateway.schemas.inferlets import Begun, Blob, Ended, LaunchRequest, Run, Text
from pie_py.client import ClientError, InferletFailed, Instance

RunEvent: TypeAlias = Begun | Text | Blob | Ended
Value = TypeVar("Value")
ANSWER_BYTES = 16 << 20  # of messages that an answer without a stream has


@asynccontextmanager
async def launched(exchange: Exchange, wanted: LaunchRequest) -> AsyncIterator[Instance]:
    """A new instance of the path's program, with its first messages, which ends with the context at
    the latest, if it is not durable. Raises `Problem`: the server refuses.
    """
    args = wanted.args
    if wanted.input is not None:
        args = ["--input", msgspec.json.encode(wanted.input).decode(), *args]
    program = exchange.path["program"]
    instance = await exchange.backend.launch(program, args, durable=wanted.durable, **wanted.goal())
    exchange.instance_launched(instance.id)
    try:
        for message in wanted.messages:
            await asked(instance.send(message))
        yield instance
    finally:
        await end(instance, leave=wanted.durable)
    exchange.instance_over(instance.id)


async def events_of(instance: Instance) -> AsyncIterator[RunEvent]:
    """Which instance it is, its messages, and its end. Raises `Problem`: no more can come."""
    yield Begun(instance.id)
    try:
        async for message in instance:
            yield Text(message) if isinstance(message, str) else Blob(message)
        yield Ended("finished", await instance.result())
    except InferletFailed as error:
        yield failed_end(error)
    except ClientError as error:
        raise of_client(error) from None


def failed_end(error: InferletFailed) -> Ended:
    """The end of an instance that has not finished."""
    return Ended("killed" if error.state == "killed" else "failed", error.text)


def launch_request(body: bytes) -> LaunchRequest:
    """JSON whose fields not of `LaunchRequest` become options. Raises `Problem`: 400 naming one."""
    wanted = parse(body, LaunchRequest)
    given = msgspec.json.decode(body.removeprefix(BOM_UTF8))
    options = {name: value for name, value in given.items() if name not in _FIELDS}
    wanted.args = [word for each in options.items() for word in _option(*each)] + wanted.args
    return wanted


_FIELDS = set(LaunchRequest.__struct_fields__)


def _option(name: str, value: Any) -> list[str]:
    """An option as programs read it: `--name=value`, once for each value of a list."""
    option = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    if isinstance(value, list):
        return [f"{option}={_word(each)}" for each in value]
    return [option, _word(value)]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def run(exchange: Exchange) -> Response:
    """Runs a program to its end, or until the client leaves."""
    wanted = await exchange.by_size(launch_request, await exchange.body())
    if wanted.stream:
        events = (event(each) async for each in _events(exchange, wanted))
        return stream_response(exchange, events)
    return json_response(await while_asked(exchange, lambda: _whole(exchange, wanted)))


async def _events(exchange: Exchange, wanted: LaunchRequest) -> AsyncGenerator[RunEvent, None]:
    async with launched(exchange, wanted) as instance:
        async for each in events_of(instance):
            yield each


async def _whole(exchange: Exchange, wanted: LaunchRequest) -> Run:
    identity, size = "", 0
    messages: list[Text | Blob] = []
    async for each in _events(exchange, wanted):
        match each:
            case Begun(identity):
                pass
            case Ended("finished", text):
                return Run(identity, messages, _result(text))
            case Ended(_, text):
                raise of_text(text)
            case Text(data) | Blob(data):
                size += len(data)
                messages.append(each)
        if size > ANSWER_BYTES:
            raise Problem(400, f"the program sends more than {ANSWER_BYTES} bytes: stream them")
    raise Problem(503, "the instance was lost", code="unreachable")


def _result(text: str) -> Any:
    """A result that is an object or a list in JSON as one, so that clients read it at once."""
    if text[:1] in ("{", "["):
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(text)
    return text


SESSION_PATH = "/v1/inferlets/{program}/session"


async def session(socket: WebSocket, exchange: Exchange) -> None:
    """Serves one connection; the instance ends with it. The first frame from the client is a
    `LaunchRequest`, each later one a message, text or bytes. The server sends the instance's events
    in JSON; its bytes as they are.
    """
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
        getattr(socket.state, STATE).on_lost = tasks.cancel_scope.cancel
        tasks.start_soon(_receive, socket, instance, tasks.cancel_scope, problem)
        try:
            async for each in events_of(instance):
                if isinstance(each, Blob):
                    await socket.send_bytes(each.base64)
                else:
                    await socket.send_text(msgspec.json.encode(each).decode())
            await socket.close()
        except (Problem, WebSocketDisconnect) as error:  # raised outside of the group
            problem.append(error)
        tasks.cancel_scope.cancel()
    if problem:
        raise problem[0]


async def _receive(
    socket: WebSocket, instance: Instance, scope: anyio.CancelScope, found: list[Exception]
) -> None:
    while True:
        frame = await socket.receive()
        if frame["type"] == "websocket.disconnect":
            scope.cancel()
            return
        text = frame.get("text")
        try:
            await asked(instance.send(frame["bytes"] if text is None else text))
        except Problem as problem:
            if problem.code in ("cancelled", "node_lost", "not_found"):
                return  # it has ended, and its last event says how
            found.append(problem)
            scope.cancel()
            return
