"""One server of the embedded models and a random one, for all programs of the library."""

from __future__ import annotations

import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.checkpoints import make_llama
from support.library import SMALL_CONTEXT, Library
from support.servers import Server

FACTS = {("Edgar", "brother"): "Sam", ("Sam", "neighbour"): "Sovut", ("Sovut", "city"): "Dublin"}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """The library on a running server."""
    folder = tmp_path_factory.mktemp("checkpoints")
    checkpoint = make_llama(folder / "test")
    small = make_llama(folder / "small", layers=1, seed=5, max_position=SMALL_CONTEXT)
    models = [
        {"source": "pie-tiny", "kv_pages": 2048},
        {"source": "pie-tiny-draft", "kv_pages": 512},
        {"source": str(checkpoint), "name": "test", "page_size": 16, "kv_pages": 2048},
        {"source": str(small), "page_size": 16, "kv_pages": 64},
    ]
    with (
        Server(
            models=models,
            http={"allow": ["127.0.0.1:*"], "allow_networks": ["127.0.0.0/8"]},
        ) as server,
        server.client() as client,
    ):
        yield Library(client, server.endpoint, checkpoint, small)


class Tools(BaseHTTPRequestHandler):
    """Looks up facts; anything else is a ladder."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))
        body = FACTS.get((query.get("0", ""), query.get("1", "")), '"ladder"').encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tools)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
