"""A real server with its HTTP gateway, started as the command line does."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from support.child_processes import ChildProcess
from support.servers import Server


class Gateway(ChildProcess):
    """A gateway process on a free port of loopback, before a server."""

    def __init__(self, server: Server, folder: Path | None = None, **settings: Any) -> None:
        """Takes a running server, a folder for its log, else it has its own, and fields of
        `GatewayConfig`; and `telemetry`, where spans go, and `on_demand`.
        """
        folder = self._folder(folder)
        telemetry = settings.pop("telemetry", None)
        on_demand = settings.pop("on_demand", {})
        settings.setdefault("http", "127.0.0.1:0")
        config = {
            "endpoint": server.endpoint,
            "data_folder": str(folder / "data"),
            "gateway": settings,
            "log": {"format": "json"},
            "telemetry": {"endpoint": telemetry},
            "on_demand": on_demand,
        }
        super().__init__("pie_gateway", config, folder / "gateway")
        self.url = self.endpoint

    def http(self, **options: Any) -> httpx2.Client:
        """A plain client of HTTP, to be used in a `with`."""
        return httpx2.Client(base_url=self.url, timeout=60, **options)

    def connect(self) -> socket.socket:
        """A plain connection, to be used in a `with`."""
        place = urlsplit(self.url)
        assert place.port is not None
        return socket.create_connection(("127.0.0.1", place.port), 10.0)
