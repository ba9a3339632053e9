"""A server without a worker process, and a guest of it."""

from __future__ import annotations

import pytest
from support.scheduler_fixtures import Guest, Server


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def guest(server: Server) -> Guest:
    return Guest(server)
