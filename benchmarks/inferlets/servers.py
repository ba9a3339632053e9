"""The tools of the pairs, as a server."""

from __future__ import annotations

import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FACTS = {("Edgar", "brother"): "Sam", ("Sam", "neighbour"): "Sovut", ("Sovut", "city"): "Dublin"}


@contextmanager
def tool_server(seconds: float) -> Iterator[str]:
    """Tools that look facts up, or answer the same to all, in so many seconds; its URL."""

    class Tools(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urllib.parse.urlparse(self.path)
            query = dict(urllib.parse.parse_qsl(asked.query))
            body = FACTS.get((query.get("0", ""), query.get("1", "")), '"ladder"').encode()
            time.sleep(seconds)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """No log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Tools)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
