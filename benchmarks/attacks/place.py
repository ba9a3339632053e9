"""A server with the limits that it has by default, which wants keys, and its users."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.attacks.server import Server
from pie_py.client.sync import Client
from pie_py.config.gateway import GatewayConfig
from pie_py.config.keys import KeyStore
from pie_py.config.logs import LogConfig
from pie_py.config.server import ServerConfig
from pie_py.config.server_process import ServerProcess

VICTIM, MALLORY, EVE = "victim", "mallory", "eve"


@dataclass(frozen=True)
class Place:
    """A server, and the key files of its users."""

    server: Server
    keys: dict[str, Path]
    http: tuple[str, int] = ("", 0)  # where its gateway is, if it has one
    gateway_log: Path | None = None

    def client(self, user: str) -> Client:
        """A client of one of the users, to be used in a `with`."""
        return Client(self.server.endpoint, key=self.keys[user], patience=60.0)

    @property
    def url(self) -> str:
        """Where a bystander is: at the gateway, if there is one."""
        host, port = self.http
        return f"http://{host}:{port}" if port else self.server.endpoint

    @property
    def control(self) -> psutil.Process:
        """The control process."""
        return self.server.process

    @property
    def ended(self) -> bool:
        """Whether the server has ended."""
        return self.server.ended

    def problems(self) -> list[str]:
        """What the server's log has that no client may cause, and whether it has ended."""
        found = ["the server has ended"] if self.ended else []
        marks = ("Traceback (most", "internal error", "[error")
        log = self.server.log
        if self.gateway_log is not None:
            log += self.gateway_log.read_text(errors="replace")
        return found + [line for line in log.splitlines() if _has(line, marks)][:5]


def _has(line: str, marks: tuple[str, ...]) -> bool:
    return any(mark in line for mark in marks)


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
        folder, keys = Path(name), {}
        for user in (VICTIM, MALLORY, EVE):
            keys[user] = folder / f"{user}.json"
            KeyStore(folder / "data").add(user).write(keys[user])
        with Server(folder, **settings) as server:
            gateway = _gateway(server.endpoint, folder) if http else None
            server.endpoint = server.endpoint.replace("0.0.0.0", "127.0.0.1")
            if gateway is None:
                yield Place(server, keys)
                return
            with gateway:
                address = ("127.0.0.1", int(gateway.wait_ready().rpartition(":")[2]))
                yield Place(server, keys, address, folder / "gateway.log")


def _gateway(endpoint: str, folder: Path) -> ServerProcess:
    """A gateway that other machines could reach, so that it wants keys."""
    config = ServerConfig(
        endpoint=endpoint,
        data_folder=folder / "data",
        gateway=GatewayConfig(http="0.0.0.0:0"),
        log=LogConfig(level="warning"),
    )
    return ServerProcess(config, folder / "gateway.log", "pie_gateway")
