"""Secrets are in no log, however much is logged: users' keys, keys of HTTP, headers and queries of
inferlets' requests, the server's own key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.gateways import Gateway
from support.servers import Server

from pie_py.client.errors import InferletFailed, RpcError
from pie_py.client.sync import Client
from pie_py.config.keys import KeyStore, api_key
from pie_py.testing.script import replaying

TOKEN = "t0ken-that-nobody-else-knows"
FETCHES = f"""
from inferlet import PieError, http, store

async def main(args):
    codes = []
    for url in ("http://127.0.0.1:1/x?token={TOKEN}", "http://example.org/x?token={TOKEN}"):
        try:
            await http.get(url, headers={{"Authorization": "Bearer {TOKEN}"}})
        except PieError as error:
            codes.append(error.code)
    await store.set("{TOKEN}", b"{TOKEN}")
    return " ".join(codes)
"""
FAILS = f"""
from inferlet import http

async def main(args):
    print("{TOKEN}")
    await http.get("http://example.org/x?token={TOKEN}")
"""
CALLS = """
from inferlet import PieError, mcp

async def main(args):
    try:
        await mcp.call_tool("x", "y", {})
    except PieError as error:
        return error.code
"""


def test_no_secret_is_in_any_log(short_folder: Path) -> None:
    keys = KeyStore(short_folder / "data")
    ann = keys.add("ann")
    settings: dict[str, Any] = {
        **replaying(short_folder),
        "endpoint": "tcp://0.0.0.0:*",
        "log": {"level": "debug"},
        "http": {"allow": ["127.0.0.1:*"]},
    }
    with (
        Server(short_folder, **settings) as server,
        Gateway(server, short_folder) as gateway,
        gateway.http() as http,
    ):
        at = server.endpoint.replace("0.0.0.0", "127.0.0.1")
        with Client(at, key=ann) as client:
            assert "permission-denied" in run(client, FETCHES)
            with pytest.raises(InferletFailed, match="permission-denied"):
                run(client, FAILS)
            register(client)
        ask(http, api_key(ann))
        logs = server.log + gateway.log
    assert "ann" in logs, "something is logged"
    secrets = [ann.secret, keys.server_pair().secret, api_key(ann), TOKEN]
    told = [line for line in logs.splitlines() if any(secret in line for secret in secrets)]
    assert not told


def run(client: Client, source: str) -> str:
    return client.launch(client.upload(source.encode(), name="it"), [TOKEN]).result(60)


def register(client: Client) -> None:
    """A tool server that is not there, with secrets in its address and in its headers."""
    client.register_mcp(
        "x", url=f"http://127.0.0.1:1/mcp?key={TOKEN}", headers={"Authorization": TOKEN}
    )
    assert run(client, CALLS) == "remote-failed"
    with pytest.raises(RpcError):
        client.register_mcp("y", url=f"http://user:{TOKEN}@example.org/")


def ask(http: Any, key: str) -> None:
    """Requests with a key in every place where one may be, right and wrong."""
    body = json.dumps({"model": "replay", "prompt": "Hi", "max_tokens": 1})
    path = "/v1/completions"
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"x-api-key": key},
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": f"Basic {TOKEN}"},
        {"x-api-key": f"{key}{TOKEN}"},
    ):
        http.post(path, content=body, headers={"content-type": "application/json", **headers})
    for query in (f"?api_key={key}", f"?key={TOKEN}", f"?access_token={TOKEN}"):
        http.get(f"/v1/models{query}")
        http.get(f"/nowhere/{query}")
    http.post(path, content=f"{{{TOKEN}", headers={"x-api-key": key})
