"""One server of the embedded models and a random one, for all programs of the library."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints import make_llama
from support.library import EMBEDDED, Library
from support.servers import Server


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """The library on a running server."""
    checkpoint = make_llama(tmp_path_factory.mktemp("checkpoint") / "model")
    models = [
        {"source": "pie-tiny", "kv_pages": 2048},
        {"source": str(EMBEDDED / "pie-tiny-draft"), "kv_pages": 512},
        {"source": str(checkpoint), "name": "test", "page_size": 16, "kv_pages": 2048},
    ]
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Server(
            Path(folder),
            models=models,
            http={"allow": ["127.0.0.1:*"], "allow_networks": ["127.0.0.0/8"]},
        ) as server,
        server.client() as client,
    ):
        yield Library(client, checkpoint)
