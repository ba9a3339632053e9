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
        """Takes a clock that counts seconds."""
        self.requests = RequestMetrics(clock)

    def text(self, snapshot: Snapshot) -> bytes:
        """The gateway's own, and those of the server."""
        registry = CollectorRegistry()
        registry.register(self.requests)
        registry.register(ServerCollector(snapshot))
        return generate_latest(registry)
