"""A server with its gateway, and plain clients that stream from it."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil

from pie_py.bench.server import bench_server, cpu_seconds
from pie_py.config.gateway import GatewayConfig, TelemetryConfig
from pie_py.config.logs import LogConfig
from pie_py.config.model import ModelConfig
from pie_py.config.server import ServerConfig
from pie_py.config.server_process import ServerProcess

NAME = "bench"  # of the model, for clients
CHUNK = 1 << 16


class Served(NamedTuple):
    """A server and its gateway."""

    url: str
    endpoint: str  # of the control process
    processes: tuple[psutil.Process, ...]  # control and gateway

    @property
    def rss_mb(self) -> float:
        """Memory of both, MB."""
        found: float = sum(process.memory_info().rss for process in self.processes) / 1e6
        return found

    @property
    def cpu_seconds(self) -> float:
        """CPU time of both so far."""
        return sum(cpu_seconds(process.pid) for process in self.processes)


@contextmanager
def gateway_server(
    model: ModelConfig, *, collector: str | None = None, metrics: bool = True, **settings: Any
) -> Iterator[Served]:
    """Runs a server and its gateway.

    Args:
        model: what is served, as `bench`.
        collector: where spans go.
        metrics: whether requests are measured.
        settings: further fields of `ServerConfig`.

    Raises:
        ServerFailed: with the reason.
    """
    with (
        bench_server(model.model_copy(update={"name": NAME}), **settings) as server,
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
    ):
        config = ServerConfig(
            endpoint=server.endpoint,
            data_folder=Path(folder),
            gateway=GatewayConfig(http="127.0.0.1:0", metrics=metrics),
            telemetry=TelemetryConfig(endpoint=collector),
            log=LogConfig(level="error"),
        )
        with ServerProcess(config, Path(folder) / "log", module="pie_gateway") as process:
            url = process.wait_ready()
            yield Served(
                url, server.endpoint, (psutil.Process(server.pid), psutil.Process(process.pid))
            )


async def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    """One request and its answer in JSON; for bodies of bytes, too."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with _request(url, method, path, data, "connection: close\r\n") as reader:
        answer = await reader.read()
    return json.loads(answer)


async def stream(
    url: str, prompt: list[int], tokens: int, *, receive_bytes: int | None = None
) -> AsyncGenerator[int, None]:
    """Streams a completion and yields the events of each part that arrives.

    Args:
        url: of the gateway.
        prompt: its tokens.
        tokens: that follow.
        receive_bytes: that the operating system keeps before they are read.

    Raises:
        RuntimeError: the gateway has refused, or the stream has no end.
    """
    body = {
        "model": NAME,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    last = b""
    data = json.dumps(body).encode()
    async with _request(url, "POST", "/v1/completions", data, kept=receive_bytes) as reader:
        while not last.endswith(b"\r\n0\r\n\r\n"):
            part = await reader.read(CHUNK)
            if not part:
                raise RuntimeError("a stream was cut")
            last = (last + part)[-16:] if len(part) < 16 else part[-16:]
            yield part.count(b"data: {")


async def watch(url: str) -> None:
    """Reads what the live page is told, until cancelled."""
    async with _request(url, "GET", "/v1/live", b"") as reader:
        while await reader.read(CHUNK):
            pass
    raise RuntimeError("the live view has ended")


@asynccontextmanager
async def _request(
    url: str,
    method: str,
    path: str,
    data: bytes,
    headers: str = "",
    kept: int | None = None,
) -> AsyncIterator[asyncio.StreamReader]:
    """A connection with one request, whose answer's head has been read."""
    address = urlsplit(url)
    place = address.hostname or "", address.port or 80
    plain = socket.socket()
    if kept is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, kept)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, place)
    reader, writer = await asyncio.open_connection(sock=plain, limit=kept or CHUNK)
    try:
        head = f"{method} {path} HTTP/1.1\r\nhost: {address.netloc}\r\n{headers}"
        head += "content-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        told = await reader.readuntil(b"\r\n\r\n")
        if b" 20" not in told[:13]:
            raise RuntimeError(f"{path}: {told[:40]!r} {await reader.read(500)!r}")
        yield reader
    finally:
        writer.close()
