"""All metrics of a gateway, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest

from pie_gateway.backend.snapshot import Snapshot
from pie_gateway.metrics.requests import RequestMetrics
from pie_gateway.metrics.server import ServerCollector


class Metrics:
    """All metrics of a gateway."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Registers them; the clock counts seconds."""
        self._registry = CollectorRegistry()
        self.requests = RequestMetrics(self._registry, clock)

    def text(self, snapshot: Snapshot) -> bytes:
        """The gateway's own, and those of the server."""
        of_server = CollectorRegistry()
        of_server.register(ServerCollector(snapshot))
        return generate_latest(self._registry) + generate_latest(of_server)
