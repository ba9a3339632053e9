"""A server for programs in JavaScript and TypeScript."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.javascript import require_javascript
from support.servers import Server

from pie_py.client.sync import Client


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """A client of a server with the embedded model."""
    require_javascript()
    with Server(limits={"samplers": 64}) as server, server.client() as client:
        yield client
