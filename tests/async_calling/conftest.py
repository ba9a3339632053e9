"""A server of the embedded model, with a site to reach and tools to call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints import make_llama
from support.servers import Server

from pie_py.client.sync import Client

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "end_to_end"))

from support.outside_programs import Site, web_site  # noqa: E402 - after the line above


@pytest.fixture(scope="session")
def calling_site() -> Iterator[Site]:
    with web_site() as running:
        yield running


@pytest.fixture(scope="session")
def calling_server(
    calling_site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The server; its second model writes CML as text, and has random weights."""
    plain = make_llama(tmp_path_factory.mktemp("plain") / "model", max_position=8192)
    address = calling_site.url.removeprefix("http://")
    stdio = {"command": sys.executable, "args": [str(TESTS / "support" / "mcp_server.py")]}
    with (
        Server(
            models=[
                {"source": "pie-tiny", "kv_pages": 4096, "host_pages": 1024},
                {"source": str(plain), "name": "plain", "kv_pages": 1024},
            ],
            http={"allow": [address], "allow_networks": ["127.0.0.0/8"]},
            mcp={"servers": {"tools": stdio}},
        ) as running,
    ):
        yield running


@pytest.fixture
def client(calling_server: Server) -> Iterator[Client]:
    with calling_server.client() as connected:
        yield connected
