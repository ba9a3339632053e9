"""MCP servers as the control layer holds them, and as processes that serve HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import trio

from pie_control.api.mcp.functions import McpServers
from pie_control.errors import ApiError
from pie_py.config.mcp import McpConfig
from support.instances import failure
from support.web_servers import Caller

SERVER = str(Path(__file__).with_name("mcp_server.py"))


@contextmanager
def http_server() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = start_http(port)
    try:
        yield port, process
    finally:
        process.kill()
        process.wait()


def start_http(port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, SERVER, "http", str(port)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    process.kill()
    raise AssertionError("the HTTP server did not start")


class Tools:
    """Calls for one instance."""

    def __init__(self, servers: McpServers) -> None:
        self.servers = servers
        self.caller = Caller()

    def start(self, tool: str, *, server: str = "test", **arguments: Any) -> int:
        return self.servers.mcp_call_tool(self.caller, server, tool, json.dumps(arguments))  # type: ignore[arg-type]

    async def call(self, tool: str, *, server: str = "test", **arguments: Any) -> Any:
        return json.loads(await self.caller.result(self.start(tool, server=server, **arguments)))

    async def list(self, server: str = "test") -> Any:
        handle = self.servers.mcp_list_tools(self.caller, server)  # type: ignore[arg-type]
        return json.loads(await self.caller.result(handle))

    async def patiently(self, tool: str, *, server: str = "test") -> Any:
        with trio.fail_after(30):
            while True:
                try:
                    return await self.call(tool, server=server)
                except ApiError:
                    await trio.sleep(0.2)

    async def failure(
        self, tool: str, code: str, *words: str, server: str = "test", **arguments: Any
    ) -> ApiError:
        """The error of this code, whose message has these words, that a call ends with."""
        with failure(code, *words) as caught:
            await self.call(tool, server=server, **arguments)
        return caught.value


@asynccontextmanager
async def running(servers: McpServers) -> AsyncIterator[Tools]:
    """Calls of one instance, while what the control layer has of MCP runs."""
    _OTHERS[:] = [*_OTHERS, *children()]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(servers.run)
            yield Tools(servers)
            nursery.cancel_scope.cancel()
    assert not children(), "every server is ended with us"


def tools(**servers: Any) -> AbstractAsyncContextManager[Tools]:
    """The operator's servers, by name."""
    return running(McpServers(McpConfig(servers=servers)))


def children() -> list[psutil.Process]:
    """The servers that the test under way has started; other tests' may run beside it."""
    found = psutil.Process().children(recursive=True)
    return [p for p in found if p not in _OTHERS and SERVER in _command(p)]


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):  # it may have ended since it was listed
        command: list[str] = process.cmdline()
        return command
    return []


_OTHERS: list[psutil.Process] = []
