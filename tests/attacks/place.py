"""A server with the limits that it has by default, which wants keys, and its users."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.gateways import Gateway
from support.servers import Server

from pie_py.client.sync import Client
from pie_py.config.keys import KeyStore

VICTIM, MALLORY, EVE = "victim", "mallory", "eve"
MARKS = ("Traceback (most", "internal error", "[error")  # of what no client may cause


@dataclass(frozen=True)
class Place:
    """A server, the key files of its users, and a gateway before it, if it has one."""

    server: Server
    keys: dict[str, Path]
    gateway: Gateway | None = None

    def client(self, user: str) -> Client:
        """A client of one of the users, to be used in a `with`."""
        return Client(_local(self.server), key=self.keys[user], patience=60.0)

    @property
    def url(self) -> str:
        """Where a bystander is: at the gateway, if there is one."""
        if self.gateway is None:
            return _local(self.server)
        return self.gateway.url.replace("0.0.0.0", "127.0.0.1")

    @property
    def http(self) -> tuple[str, int]:
        """The gateway's address, to connect to."""
        return "127.0.0.1", urlsplit(self.url).port or 0

    def problems(self) -> list[str]:
        """What the logs have that no client may cause, and whether the server has ended."""
        log = self.server.log + (self.gateway.log if self.gateway else "")
        found = [line for line in log.splitlines() if any(mark in line for mark in MARKS)]
        return ["the server has ended"] * self.server.ended + found[:5]


def _local(server: Server) -> str:
    return server.endpoint.replace("0.0.0.0", "127.0.0.1")


@contextmanager
def place(*, http: bool = False, **settings: Any) -> Iterator[Place]:
    """Starts a server with three users, and a gateway; takes fields of `ServerConfig`."""
    settings = {
        "endpoint": "tcp://0.0.0.0:*",  # so that it wants keys
        "models": [{"source": "pie-tiny", "kv_pages": 8192}],
        "limits": {"cpu_seconds": 10.0},
        "log": {"level": "warning"},
        **settings,
    }
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        keys = {user: folder / f"{user}.json" for user in (VICTIM, MALLORY, EVE)}
        for user, file in keys.items():
            KeyStore(folder / "data").add(user).write(file)
        with Server(folder, **settings) as server:
            if not http:
                yield Place(server, keys)
                return
            # Other machines could reach it, so it wants keys, too.
            with Gateway(server, folder, http="0.0.0.0:0") as gateway:
                yield Place(server, keys, gateway)
