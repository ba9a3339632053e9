"""How the server is doing: `/metrics`, and what the live page shows."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from pie_gateway.http.answers import event, json_response
from pie_gateway.http.door import Exchange
from pie_gateway.http.streams import stream_response
from pie_gateway.live import View
from pie_gateway.problems import Problem, of_client
from pie_py.client import ClientError

SECONDS = 1.0  # between two views


async def metrics(exchange: Exchange) -> Response:
    """All metrics, as Prometheus reads them; for operators."""
    if not exchange.is_operator:
        raise Problem(
            403, f"{exchange.user} is no operator: `admins` of the configuration names them"
        )
    text = exchange.metrics.text(await exchange.backend.snapshots.newest())
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def live(exchange: Exchange) -> Response:
    """The server each second: models, rates, latencies, instances."""
    return await stream_response(exchange, _views(exchange))


async def _views(exchange: Exchange) -> AsyncGenerator[bytes, None]:
    view = View(exchange.metrics.requests)
    while True:
        yield event(view.of(await exchange.backend.snapshots.newest()))
        await anyio.sleep(SECONDS)


async def inspect(exchange: Exchange) -> Response:
    """What an instance waits for, and its pages with the instances that share them."""
    try:
        found = await exchange.backend.client.inspect(exchange.request.path_params["instance"])
    except ClientError as error:
        raise of_client(error) from None
    return json_response(found)
