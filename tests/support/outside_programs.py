"""The guests of http and mcp, in both languages, and what they fetch from."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pie_py.client.sync import Client
from support.rust_components import rust_component

LANGUAGES = ("python", "rust")


def run(client: Client, language: str, *args: str) -> str:
    """Runs a guest to its end and returns its result."""
    if language == "python":
        program = client.upload(Path(__file__).parents[1] / "end_to_end/guests" / "outside.py")
    else:
        program = client.upload(rust_component("outside_guests"), name="outside-guests")
    return client.launch(program, list(args)).result()


class Site(ThreadingHTTPServer):
    """A web site on loopback. `gone` is set when a client has left the page `/slow`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.gone = threading.Event()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Pages(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Site

    def do_GET(self) -> None:
        match self.path:
            case "/json":
                self.answer(json.dumps({"name": "Ada"}).encode(), "application/json")
            case "/large":
                self.answer(gzip.compress(b"x" * 3_000_000), "text/plain", packed=True)
            case "/lines":
                self.answer("one\r\n\ntwo\ngröße".encode())
            case "/many-lines":
                self.answer(b"x" * 100_000 + b"\n" + b"ab\r\n" * 5_000)
            case "/latin":
                self.answer("größe".encode("latin-1"), "text/plain; charset=ISO-8859-1")
            case "/idna":
                self.answer("größe".encode(), "text/plain; charset=idna")
            case "/missing":
                self.send_error(404)
            case "/cookies":
                self.send_response(204)
                self.send_header("Set-Cookie", "a=1")
                self.send_header("Set-Cookie", "b=2")
                self.end_headers()
            case "/slow":
                self.rfile.read(1)  # until the client leaves
                self.server.gone.set()
            case path:
                self.answer(f"page {path} {self.headers.get('X-Mine', '')}".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.headers["Content-Type"].encode() + b" " + body)

    def answer(self, body: bytes, kind: str = "text/plain", *, packed: bool = False) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def web_site() -> Iterator[Site]:
    """A site that is up for a while."""
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
