"""Observation of the server: `/health` and the like, `/metrics`, and what the live page shows."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import msgspec
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import event, json_response, stream_response
from pie_gateway.live import View
from pie_gateway.metrics.server import metrics_text
from pie_gateway.problems import Problem, asked
from pie_py import __version__
from pie_py.config.shipped_files import contract_version


async def metrics(exchange: Exchange) -> Response:
    """All metrics, as Prometheus reads them; for operators."""
    if not exchange.is_operator:
        raise Problem(
            403, f"{exchange.user} is no operator: `admins` of the configuration names them"
        )
    text = metrics_text(exchange.metrics, await exchange.backend.snapshots.newest())
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def live(exchange: Exchange) -> Response:
    """The server each second: models, rates, latencies, instances."""
    return stream_response(exchange, _views(exchange))


async def _views(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    backend = exchange.backend
    backend.view = view = backend.view or View(exchange.metrics)
    while True:
        yield view.event(await backend.snapshots.newest(), event)
        await anyio.sleep(1.0)


async def inspect(exchange: Exchange) -> Response:
    """The waits of an instance, and its pages with the instances that share them."""
    instance = exchange.request.path_params["instance"]
    return json_response(await asked(exchange.backend.client.inspect(instance)))


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
