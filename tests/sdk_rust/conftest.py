"""A real server of a small random checkpoint, for components built from source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints import make_llama
from support.rust_components import Run, rust_component, use_toolchain
from support.servers import Server

from pie_py.client.sync import Client

PAGE_SIZE = 16


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("checkpoint") / "model", max_position=256)


@pytest.fixture(scope="session")
def client(checkpoint: Path) -> Iterator[Client]:
    """A client of a server whose largest forward is short, so that prompts go in chunks."""
    model = {
        "source": str(checkpoint),
        "name": "test",
        "page_size": PAGE_SIZE,
        "kv_pages": 256,
        "max_batch_tokens": 64,
    }
    with Server(models=[model]) as server, server.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def run(client: Client) -> Run:
    """See `rust_components.Run`."""

    def run(name: str, *args: str) -> tuple[str, str]:
        instance = client.launch(client.upload(rust_component(name)), args)
        messages = "".join(str(message) for message in instance)
        return messages, instance.result()

    return run


@pytest.fixture(scope="session")
def toolchain() -> None:
    """A Rust compiler for Wasm in this process's environment."""
    use_toolchain()
