"""Observation of the server: `/health` and the like, `/metrics`, and what the live page shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Annotated, Any

import anyio
import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_gateway.backend.catalog import Snapshot
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response
from pie_gateway.http.reading import encode, parse
from pie_gateway.metrics.requests import RequestMetrics
from pie_gateway.metrics.server import metrics_text
from pie_gateway.problems import Problem, asked
from pie_py import __version__
from pie_py.config.shipped_files import contract_version

LIVE_PATH = "/v1/live"
SERVER_SECONDS, INSTANCE_SECONDS = 1.0, 0.25  # between two looks
RESTING = 8  # looks in the time of which there is one at an instance that has ended
WATCHED = 8  # instances at once


async def metrics(exchange: Exchange) -> Response:
    """All metrics, as Prometheus reads them; for operators."""
    if not exchange.is_operator:
        raise Problem(
            403, f"{exchange.user} is no operator: `admins` of the configuration names them"
        )
    used = await asked(exchange.client.usage(all_users=True))
    text = metrics_text(exchange.metrics, await exchange.backend.snapshots.newest(), used)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class Read(msgspec.Struct):
    """How much of an instance a viewer has: the `next` of its newest trace and log."""

    trace: int = 0
    log: int = 0
    rests: bool = False  # nothing new is expected


class Watch(msgspec.Struct, forbid_unknown_fields=True):
    """The parts that a viewer looks at from now on, by instance."""

    watch: Annotated[dict[str, Read], msgspec.Meta(max_length=WATCHED)]


async def live(socket: WebSocket, exchange: Exchange) -> None:
    """All that changes, over one WebSocket: the server each second (`server`), and instances that
    the client names in a `Watch`, whenever they have changed. It ends as a request does that takes
    too long, and the client comes again.
    """
    viewer = _Viewer(socket, exchange)
    problem: list[Problem] = []
    with anyio.move_on_after(exchange.config.request_seconds):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(viewer.tell_server)
            tasks.start_soon(viewer.tell_instances)
            try:
                await viewer.listen()
            except Problem as error:  # raised outside of the group
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
        self._client = exchange.client
        self._watched: dict[str, Read] = {}
        self._shown: dict[str, str] = {}  # what was sent last of each

    async def listen(self) -> None:
        """Takes what is to be watched until the viewer goes. Raises `Problem`: it is none."""
        while (frame := await self._socket.receive())["type"] != "websocket.disconnect":
            sent = frame.get("bytes") or (frame.get("text") or "").encode()
            self._watched = parse(sent, Watch).watch
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
        """The news of an instance: itself, and the new part of its trace and log."""
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
    instance = exchange.path["instance"]
    context = exchange.number("context") or None
    return json_response(await asked(exchange.client.inspect(instance, context)))


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


MOST_INSTANCES = 500  # that run or sleep
MOST_ENDED = 20
MOST_NODES = 500  # of a cluster
PERCENTILES = (50, 90, 99)


class View:
    """The server as the viewers of one user see it: all get what was made for the first."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests
        self._before: Snapshot | None = None
        self._shown = b""

    def event(self, snapshot: Snapshot, encode: Callable[[Any], bytes]) -> bytes:
        """The view of a snapshot, encoded as all viewers get it."""
        if snapshot is not self._before:
            self._shown = encode(self.of(snapshot))
        return self._shown

    def of(self, snapshot: Snapshot) -> dict[str, Any]:
        """The view of a snapshot, with rates since the one before."""
        before, self._before = self._before, snapshot
        instances = _with_rates(before, snapshot)
        alive = [each for each in instances if each["ended_ns"] is None]  # or asleep
        alive.sort(key=lambda each: each["state"] == "asleep")
        ended = [each for each in instances if each["ended_ns"] is not None]
        # Of a cluster, those first that take no launches.
        nodes = sorted(snapshot.info.get("nodes", []), key=lambda node: node["state"] == "ready")
        return {
            "version": snapshot.info["version"],
            "user": snapshot.info["user"],
            "uptime": snapshot.info["uptime"],
            "alive": snapshot.info["instances"],
            "max_instances": snapshot.info["max_instances"],
            "launched": snapshot.info["launched"],
            "launches_per_second": _rate(before, snapshot, ("launched",)),
            "first": percentiles(self._requests.recent_first),
            "between": percentiles(self._requests.recent_between),
            "models": [self._model(name, before, snapshot) for name in snapshot.stats],
            "nodes": nodes[:MOST_NODES],
            "instances": [*alive[:MOST_INSTANCES], *ended[-MOST_ENDED:]],
        }

    def _model(self, name: str, before: Snapshot | None, now: Snapshot) -> dict[str, Any]:
        stats = now.stats[name]

        def rate(*path: str) -> float:
            return _rate(before, now, (name, *path))

        batches = rate("batches", "forward")
        return {
            "name": name,
            "pages": stats["kv_pages"],
            "pages_free": stats["kv_pages_free"],
            "pages_cached": stats["prefix_pages"],
            "pages_exported": stats["exported_pages"],
            "host_pages": stats["host_pages"],
            "host_pages_free": stats["host_pages_free"],
            "queued": stats["queued"],
            "in_flight": stats["plans_in_flight"],
            "queues": stats["queues"],
            "tokens_per_second": rate("generated_tokens"),
            "prompt_tokens_per_second": rate("prompt_tokens"),
            "batches_per_second": batches,
            "commands_per_batch": rate("commands", "forward") / batches if batches else 0.0,
            "busy": rate("worker_ns") / 1e9,
            "found": stats["prefix_tokens_found"] / max(1, stats["prefix_tokens_asked"]),
        }


def _with_rates(before: Snapshot | None, now: Snapshot) -> list[dict[str, Any]]:
    """The instances, each with the tokens that it has generated per second."""
    old = {} if before is None else {each["id"]: each for each in before.instances}
    seconds = max(now.at - (now if before is None else before).at, 1e-9)
    return [
        {
            **each,
            "tokens_per_second": max(
                0, each["generated_tokens"] - old.get(each["id"], each)["generated_tokens"]
            )
            / seconds,
        }
        for each in now.instances
    ]


def percentiles(seen: Sequence[float] | Iterable[float]) -> dict[str, float] | None:
    """Some percentiles, by name; None of nothing."""
    ordered = sorted(seen)
    if not ordered:
        return None
    return {
        f"p{share}": ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
        for share in PERCENTILES
    }


def _rate(before: Snapshot | None, now: Snapshot, path: Sequence[str]) -> float:
    if before is None or now.at <= before.at:
        return 0.0
    old, new = _number(before, path), _number(now, path)
    return max(0.0, new - old) / (now.at - before.at)  # a worker that starts again counts from 0


def _number(snapshot: Snapshot, path: Sequence[str]) -> float:
    found: Any = snapshot.info if len(path) == 1 else snapshot.stats
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return 0.0
        found = found[key]
    return float(found)
