"""One server for the tests that leave it as they found it, and components built from source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints import make_llama
from support.servers import Server

from pie_py.client.sync import Client

GUESTS = Path(__file__).parent / "guests"
WAITING = 3 << 20  # bytes that an instance may have on their way to or from the store


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama checkpoint in fp32."""
    return make_llama(tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[Server]:
    """A server of the small checkpoint."""
    models = [{"source": str(checkpoint), "name": "test", "page_size": 16, "kv_pages": 4096}]
    with Server(models=models, store={"waiting_bytes": WAITING}) as running:
        yield running


@pytest.fixture(scope="session")
def guests() -> Path:
    """The folder of the Python inferlets that these tests launch."""
    return GUESTS


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of it."""
    with server.client() as connected:
        yield connected
