"""How the server is doing: `/metrics`."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from pie_gateway.http.door import Exchange
from pie_gateway.problems import Problem


async def metrics(exchange: Exchange) -> Response:
    """All metrics, as Prometheus reads them; for operators."""
    if not exchange.is_operator:
        raise Problem(
            403, f"{exchange.user} is no operator: `admins` of the configuration names them"
        )
    text = exchange.metrics.text(await exchange.backend.snapshots.newest())
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
