"""Observation of the server: `/health` and the like, `/metrics`, and what the live page shows."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import Annotated, Any

import anyio
import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response
from pie_gateway.http.reading import encode, parse
from pie_gateway.live import View
from pie_gateway.metrics.server import metrics_text
from pie_gateway.problems import Problem, asked
from pie_py import __version__
from pie_py.config.shipped_files import contract_version

LIVE_PATH = "/v1/live"
SERVER_SECONDS, INSTANCE_SECONDS = 1.0, 0.25  # between two looks
RESTING = (
    8  # looks in the time of which there is one at an instance that has ended, or is not there
)
WATCHED = 8  # instances at once


async def metrics(exchange: Exchange) -> Response:
    """All metrics, as Prometheus reads them; for operators."""
    if not exchange.is_operator:
        raise Problem(
            403, f"{exchange.user} is no operator: `admins` of the configuration names them"
        )
    used = await asked(exchange.backend.client.usage(all_users=True))
    text = metrics_text(exchange.metrics, await exchange.backend.snapshots.newest(), used)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class Read(msgspec.Struct):
    """How much of an instance a viewer has: the `next` of its newest trace and log."""

    trace: int = 0
    log: int = 0
    rests: bool = False  # nothing new is expected


class Watch(msgspec.Struct, forbid_unknown_fields=True):
    """What a viewer looks at from now on, by instance."""

    watch: Annotated[dict[str, Read], msgspec.Meta(max_length=WATCHED)]


async def live(socket: WebSocket, exchange: Exchange) -> None:
    """All that changes, over one WebSocket: the server each second (`server`), and instances that
    the client names in a `Watch`, whenever they have changed. It ends as a request does that takes
    too long, and the client comes again.
    """
    viewer = _Viewer(socket, exchange)
    problem: list[Exception] = []
    with anyio.move_on_after(exchange.config.request_seconds):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(viewer.tell_server)
            tasks.start_soon(viewer.tell_instances)
            try:
                await viewer.listen()
            except (Problem, WebSocketDisconnect) as error:  # raised outside of the group
                problem.append(error)
            tasks.cancel_scope.cancel()
    if problem:
        raise problem[0]
    await socket.close()


class _Viewer:
    """One connection of a page."""

    def __init__(self, socket: WebSocket, exchange: Exchange) -> None:
        self._socket = socket
        self._exchange = exchange
        self._client = exchange.backend.client
        self._watched: dict[str, Read] = {}
        self._shown: dict[str, str] = {}  # what was sent last of each

    async def listen(self) -> None:
        """Takes what is to be watched. Raises `WebSocketDisconnect`, and `Problem`: it is none."""
        while True:
            self._watched = parse((await self._socket.receive_text()).encode(), Watch).watch
            self._shown = {}

    async def tell_server(self) -> None:
        """Sends the models, rates, latencies and instances, or why they are not known."""
        backend = self._exchange.backend
        backend.view = view = backend.view or View(self._exchange.metrics)
        while True:
            try:
                shown = view.event(await backend.snapshots.newest(), encode)
                await self._send(f'{{"server":{shown.decode()}}}')
            except Problem as problem:
                await self._send(encode({"error": problem.message}).decode())
            await anyio.sleep(SERVER_SECONDS)

    async def tell_instances(self) -> None:
        """Sends those that are watched and have changed."""
        for turn in count():
            for name, read in list(self._watched.items()):
                if read.rests and turn % RESTING:
                    continue
                text = encode({"instance": name, **await self._look(name, read)}).decode()
                if text != self._shown.get(name) and self._watched.get(name) is read:
                    await self._send(text)
                    self._shown[name] = text
            await anyio.sleep(INSTANCE_SECONDS)

    async def _look(self, name: str, read: Read) -> dict[str, Any]:
        """What is to be told of an instance: itself, and what is new of its trace and log."""
        client, read.rests = self._client, True
        try:
            told = await asked(client.inspect(name))
            trace = await asked(client.trace(name, read.trace))
            log = await asked(client.logs(name, read.log))
        except Problem as problem:
            return {"error": problem.message, "gone": problem.status == 404}
        read.trace, read.log, read.rests = trace["next"], log["next"], log["ended"]
        return {"told": told, "trace": trace, "log": log}

    async def _send(self, text: str) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):  # `listen` ends this
            await self._socket.send_text(text)


async def inspect(exchange: Exchange) -> Response:
    """The waits of an instance, and its pages with the instances that share them; the tokens of its
    context number `context`, too.
    """
    instance = exchange.request.path_params["instance"]
    context = exchange.number("context") or None
    return json_response(await asked(exchange.backend.client.inspect(instance, context)))


class Version(msgspec.Struct):
    """Versions of pie_py and of its contract."""

    version: str
    contract: str


class Status(msgspec.Struct):
    """True if the server can be used."""

    status: str


async def health(request: Request) -> Response:
    """The gateway runs."""
    return json_response(Status("ok"))


async def ready(request: Request) -> Response:
    """The control process listens, so that requests are answered, and the gateway goes on."""
    if request.app.state.leaves:
        return json_response(Status("the gateway is about to stop"), 503)
    if await request.app.state.admission.backends.is_reachable():
        return json_response(Status("ready"))
    return json_response(Status("the control process does not answer"), 503)


async def version(request: Request) -> Response:
    """Which version runs."""
    return json_response(Version(__version__, contract_version()))
