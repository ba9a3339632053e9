from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from support.gateways import Gateway
from support.servers import Server

MODEL = "pie-tiny"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name, Server(Path(name)) as server:
        yield server


@pytest.fixture(scope="session")
def gateway(server: Server) -> Iterator[Gateway]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name, Gateway(server, Path(name)) as gateway:
        yield gateway


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client
