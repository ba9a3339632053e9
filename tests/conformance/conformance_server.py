"""The server that the cases run on, and what they may call by name."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from support.checkpoints import make_adapter, make_llama
from support.encoder_checkpoints import make_bert
from support.image_checkpoints import make_llava
from support.javascript import require_javascript
from support.reference import probabilities
from support.rust_components import rust_component
from support.servers import Server

HERE = Path(__file__).parent
TOOLS = HERE.parent / "support" / "mcp_server.py"
# Small enough to be reached by a case; `README.md` names them.
LIMITS = {
    "queues": 8,
    "futures": 64,
    "queued_commands": 32,  # within one turn, also of a slow guest on a busy machine
    "children": 2,
    "child_depth": 1,
    "samplers": 4,
    "grammars": 4,
    "message_bytes": 65536,
    "mailbox_bytes": 262144,
}


@dataclass
class Place:
    """A server for the cases, and the names that they use."""

    server: Server
    names: dict[str, Any]
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)


@contextmanager
def start(folder: Path, **settings: Any) -> Iterator[Place]:
    """A server of a text model `test`, a model `vision` that reads images, and an `encoder`.

    Takes a folder for their checkpoints, and fields of `ServerConfig` that are to be others.
    """
    settings.setdefault("limits", LIMITS)
    text, vision = make_llama(folder / "text"), make_llava(folder / "vision", "clip-llama")
    tilted = make_adapter(text, folder / "tilted", target_modules="all-linear")
    pools = {"page_size": 16, "kv_pages": 64, "host_pages": 16, "embeds": 512}
    with _site() as site:
        host = f"127.0.0.1:{site.server_address[1]}"
        with Server(
            models=[
                {
                    "source": str(text),
                    "name": "test",
                    "max_batch_tokens": 128,
                    "adapters": {"tilted": str(tilted)},
                    **pools,
                },
                {"source": str(vision), "name": "vision", **pools},
                {"source": str(make_bert(folder / "encoder")), "name": "encoder"},
            ],
            **settings,
            messaging={"subscriptions": 4, "queues": 4, "queue_messages": 8, "box_messages": 8},
            store={"keys": 16, "value_bytes": 4096, "bytes": 65536, "waiting_bytes": 16384},
            http={"allow": [host], "allow_networks": ["127.0.0.0/8"], "concurrent": 4, "bodies": 2},
            mcp={"servers": {"tools": {"command": sys.executable, "args": [str(TOOLS)]}}},
        ) as server:
            yield Place(
                server,
                {
                    "site": f"http://{host}",
                    "picture": _picture(40, 30),
                    "huge_picture": _png(Image.new("1", (6000, 6000))),
                    "tokens": list(range(5, 25)),
                },
                {"reference": lambda *given: _reference(text, *given)},
            )
            assert server.stop() == 0


# The interpreter in each language.
PROGRAMS: dict[str, Callable[[], Path]] = {
    "python": lambda: HERE / "guests" / "interpreter.py",
    "rust": lambda: rust_component("conformance"),
    "javascript": lambda: _javascript_interpreter(),
}


def _javascript_interpreter() -> Path:
    require_javascript()
    return HERE / "guests" / "interpreter.js"


def _reference(folder: Path, *given: Any) -> list[list[Any]]:
    tokens, positions, visible = (*given, None, None)[:3]
    rows = [[bool(bit) for bit in row] for row in visible] if visible else None
    shares = probabilities(folder, tokens, positions, rows)
    return [list(range(len(shares))), shares.tolist()]


def _picture(width: int, height: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (height // 10, width // 10, 3), np.uint8)
    return _png(Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST))


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


class _Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        places = {"/away": "http://192.0.2.1/", "/moved": "/here?x=1"}
        if self.path in places:
            self.send_response(302)
            self.send_header("Location", places[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._answer(f"{self.command} {self.path} {self.headers.get('X-Mine', '')}".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._answer(self.command.encode() + b" " + body)

    do_PUT = do_POST  # noqa: N815 - the library's names

    def _answer(self, body: bytes) -> None:
        self.send_response(200 if self.path != "/missing" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def _site() -> Iterator[ThreadingHTTPServer]:
    """A web site that is up for a while."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        try:
            yield site
        finally:
            site.shutdown()
