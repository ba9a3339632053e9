"""Servers of the pairs: vLLM's, and tools."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2

from benchmarks.peers import PeerFailed

VLLM_PORT = 18017
VLLM_SECONDS = 240.0
FACTS = {("Edgar", "brother"): "Sam", ("Sam", "neighbour"): "Sovut", ("Sovut", "city"): "Dublin"}


@contextmanager
def vllm_endpoint(python: str, folder: str, name: str) -> Iterator[str]:
    """VLLM's OpenAI-style server of a checkpoint; its URL.

    Raises:
        PeerFailed: it does not start.
    """
    url = f"http://127.0.0.1:{VLLM_PORT}"
    module = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    more = ["--served-model-name", name, "--port", str(VLLM_PORT), "--max-model-len", "2048"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*module, *more, "--enable-prefix-caching"], stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + VLLM_SECONDS
            while not _answers(f"{url}/health"):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    words = log.read().strip().splitlines()[-15:]
                    raise PeerFailed("\n    ".join(["vLLM's server does not start:", *words]))
                time.sleep(0.5)
            yield url
        finally:
            process.terminate()
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=2).is_success
    except httpx2.HTTPError:
        return False


@contextmanager
def tool_server(seconds: float, times: Mapping[str, float]) -> Iterator[str]:
    """Tools that look facts up, or answer the same to all; its URL.

    Args:
        seconds: that a tool takes.
        times: the same of those that take another time, by name.
    """

    class Tools(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = urllib.parse.urlparse(self.path)
            query = dict(urllib.parse.parse_qsl(asked.query))
            body = FACTS.get((query.get("0", ""), query.get("1", "")), '"ladder"').encode()
            time.sleep(times.get(asked.path[1:], seconds))
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
