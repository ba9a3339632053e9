"""Who may ask, and how much: keys, limits, origins, TLS."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import anyio
import httpx2
import pytest
import trustme
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute
from support.gateways import Gateway
from support.servers import Server
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from pie_gateway.app import make_app
from pie_gateway.http.limits import Bucket
from pie_gateway.problems import Problem
from pie_py.config.keys import KeyStore, api_key, find_user
from pie_py.config.server import ServerConfig
from pie_py.testing.script import replaying

CHAT = "/v1/chat/completions"
HI = {"model": "pie-tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def test_keys_are_those_of_the_users(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    ann, bob = store.add("ann"), store.add("bob")
    assert find_user(api_key(ann), store) == ann
    store.remove("bob")
    assert find_user(api_key(bob), store) is None
    for wrong in ("", "pie-", "sk-abc", "pie-ä", api_key(ann)[:-1], api_key(ann) + "a"):
        assert find_user(wrong, store) is None
    ann.write(tmp_path / "ann.json")
    command = [sys.executable, "-m", "pie_py", "keys", "http", str(tmp_path / "ann.json")]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == api_key(ann)


def test_users_of_an_encrypted_server(short_folder: Path) -> None:
    store = KeyStore(short_folder / "data")
    keys = {user: api_key(store.add(user)) for user in ("ann", "bob")}
    settings = replaying(short_folder)
    with (
        Server(short_folder, **settings, endpoint="tcp://0.0.0.0:*") as server,
        Gateway(server, short_folder) as gateway,
        gateway.http() as http,
    ):
        assert http.get("/health").status_code == 200
        refused = http.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "this server wants an API key" in refused.text
        assert http.get("/v1/models", headers={"x-api-key": "pie-x"}).status_code == 401
        unread = http.post("/v1/messages", json={}, headers={"x-api-key": "pie-x"})
        assert (unread.status_code, unread.json()["type"]) == (401, "error")
        assert unread.json()["error"]["type"] == "authentication_error"
        ann, bob = ({"authorization": f"Bearer {keys[user]}"} for user in ("ann", "bob"))
        assert http.post(CHAT, json={**HI, "model": "replay"}, headers=ann).status_code == 200
        for header in ("x-api-key", "api-key"):
            assert http.get("/v1/server", headers={header: keys["bob"]}).json()["user"] == "bob"
        source = b"from inferlet import runtime\nasync def main(args):\n await runtime.sleep(99)"
        http.post("/v1/programs", params={"name": "sleep"}, content=source, headers=ann)
        made = http.post("/v1/instances", json={"program": "sleep"}, headers=ann).json()["id"]
        assert http.get(f"/v1/instances/{made}", headers=bob).status_code == 404
        assert http.delete(f"/v1/instances/{made}", headers=bob).status_code == 404
        assert http.delete(f"/v1/instances/{made}", headers=ann).json() == {"killed": True}
        store.remove("bob")
        while http.get("/v1/models", headers=bob).status_code != 401:
            pass  # a key is believed for two seconds


def test_other_machines_need_keys(server: Server, short_folder: Path) -> None:
    refused = Gateway(server, short_folder, http="0.0.0.0:0")
    assert "pie-py keys add" in (refused.error or "")
    assert refused.stop() == 1
    key = api_key(KeyStore(short_folder / "data").add("ann"))
    with Gateway(server, short_folder, http="0.0.0.0:0") as gateway, gateway.http() as http:
        assert http.get("/v1/models").status_code == 401
        assert http.get("/v1/models", headers={"x-api-key": key}).status_code == 200
        live = gateway.url.replace("http", "ws") + "/v1/live"
        with connect(live, subprotocols=cast(Any, ["pie", f"pie-key.{key}"])) as page:
            assert page.subprotocol == "pie"
            assert "server" in json.loads(page.recv())
        with pytest.raises(InvalidStatus), connect(live):
            pass


def test_a_bucket_fills_within_a_minute() -> None:
    now = 0.0
    bucket = Bucket(60 / 60, 60, lambda: now)
    bucket.take(60)
    assert bucket.wait(1) == pytest.approx(1)
    now = 0.5
    assert bucket.wait(1) == pytest.approx(0.5)
    now = 1000.0
    assert bucket.wait(60) == 0
    bucket.take(120)
    assert bucket.wait(1) == pytest.approx(61), "overdrawn"
    assert bucket.wait(10**9) == pytest.approx(120), "no wait is for more than it holds"


def test_limits_of_a_user(server: Server, short_folder: Path) -> None:
    limits = {"requests_per_minute": 2}
    with Gateway(server, short_folder, **limits) as gateway, gateway.http() as http:
        assert [http.get("/v1/models").status_code for _ in range(3)] == [200, 200, 429]
        refused = http.get("/v1/models")
        assert refused.json()["error"]["code"] == "requests_per_minute"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert http.get("/health").status_code == 200
    with Gateway(server, short_folder, tokens_per_minute=5) as gateway, gateway.http() as http:
        assert http.post(CHAT, json=HI).status_code == 200, "what it takes is known afterwards"
        assert http.post(CHAT, json=HI).json()["error"]["code"] == "tokens_per_minute"


def test_pages_of_other_origins_are_kept_out(
    gateway: Gateway, server: Server, short_folder: Path
) -> None:
    with gateway.http() as http:
        own = {"origin": gateway.url}
        assert http.get("/v1/models", headers=own).status_code == 200
        evil = {"origin": "https://evil.example"}
        for answer in (
            http.post(CHAT, json=HI, headers=evil),
            http.get("/v1/models", headers=evil),
        ):
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers
    page = {"origin": "https://page.example"}
    options = {"cors_origins": [page["origin"]]}
    with Gateway(server, short_folder, **options) as gateway, gateway.http() as http:
        answer = http.post(CHAT, json=HI, headers=page)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == page["origin"]
        asked = {**page, "access-control-request-method": "POST"}
        assert http.options(CHAT, headers=asked).status_code == 200
        assert http.get("/v1/models", headers={"origin": "https://evil"}).status_code == 403


def certified(folder: Path, name: str) -> tuple[ssl.SSLContext, dict[str, str]]:
    """A context that trusts a certificate of a name, and the options of a gateway that has it."""
    authority = trustme.CA()
    authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(folder / "pem")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    return trusted, {"tls_certificate": str(folder / "pem"), "tls_key": str(folder / "pem")}


def test_tls(server: Server, short_folder: Path) -> None:
    trusted, files = certified(short_folder, "localhost")
    with Gateway(server, short_folder, http="localhost:0", **files) as gateway:
        assert gateway.url.startswith("https://")
        url = f"https://localhost:{gateway.url.rpartition(':')[2]}"
        assert httpx2.get(f"{url}/v1/models", verify=trusted).status_code == 200
        assert httpx2.post(f"{url}{CHAT}", json=HI, verify=trusted).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/v1/models")


def test_handshakes_that_do_not_end_are_bounded(server: Server, short_folder: Path) -> None:
    """Of strangers' connections the oldest makes way, long before it has said anything."""
    trusted, files = certified(short_folder, "127.0.0.1")
    with Gateway(server, short_folder, http="127.0.0.1:0", connections=40, **files) as gateway:
        host, port = gateway.url.removeprefix("https://").split(":")
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection((host, int(port)), 5))
                for _ in range(30)
            ]
            silent[0].settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert silent[0].recv(1) == b""
            assert httpx2.get(f"{gateway.url}/v1/models", verify=trusted).status_code == 200
            silent[-2].sendall(b"nonsense\r\n\r\n" * 10)
            with contextlib.suppress(ConnectionResetError):
                while silent[-2].recv(100):
                    pass
            assert httpx2.get(f"{gateway.url}/v1/models", verify=trusted).status_code == 200


def asked(app: Starlette, kind: str, method: str, path: str, headers: dict[str, str]) -> int:
    """The status of an application's answer, or the code with which it closes a WebSocket."""
    found: list[int] = []
    parts = {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
    scope = {"type": kind, "method": method, "scheme": "http", **parts}
    scope["headers"] = [(name.encode(), text.encode()) for name, text in headers.items()]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"} if kind == "http" else {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        found.extend(message[name] for name in ("status", "code") if name in message)

    anyio.run(app, scope, receive, send)
    return found[0]


def test_pages_of_other_sites_reach_no_route(tmp_path: Path) -> None:
    """Whatever the application has, so that a new route is among them."""
    app = make_app(ServerConfig(data_folder=tmp_path))
    here = {"host": "127.0.0.1:80"}
    foreign: list[dict[str, str]] = [
        {**here, "origin": "https://evil.example"},
        {**here, "origin": "null"},
        {**here, "sec-fetch-site": "cross-site"},  # an image or a link, which has no origin
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost.evil.example:80", "origin": "http://localhost.evil.example:80"},
        {},
    ]
    kinds = set()
    for route in app.routes:
        kinds.add(type(route))
        kind = "websocket" if isinstance(route, WebSocketRoute) else "http"
        assert isinstance(route, Route | Mount | WebSocketRoute)
        for method in getattr(route, "methods", None) or {"GET"}:
            for headers in foreign:
                status = asked(app, kind, method, route.path or "/", headers)
                assert status == 403, (route.path, method, headers)
    assert kinds == {Route, Mount, WebSocketRoute}
    assert asked(app, "http", "GET", "/version", here) == 200


@pytest.mark.parametrize(("status", "code"), [(429, 1008), (500, 1011), (503, 1011)])
def test_a_closed_socket_says_whose_fault_it_was(tmp_path: Path, status: int, code: int) -> None:
    app = make_app(ServerConfig(data_folder=tmp_path))
    app.state.admission = Mock(**{"exchange.side_effect": Problem(status, "it is so")})
    path, headers = "/v1/inferlets/echo/session", {"host": "127.0.0.1:80"}
    assert asked(app, "websocket", "GET", path, headers) == code
