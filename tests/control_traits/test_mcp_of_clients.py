"""MCP servers that clients register: for their own user, within what the operator lets programs
reach.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from support.instances import failure
from support.mcp_servers import SERVER, Tools, http_server, running
from support.web_servers import Asked, Caller, always, browser, reply

from pie_control.api.mcp.functions import McpServers
from pie_control.errors import ApiError
from pie_control.rpc.params import read
from pie_py.config.http import HttpConfig
from pie_py.config.mcp import McpConfig
from pie_py.wire.methods import RegisterMcp

SECRET = "dont-tell-anybody"
COMMAND: dict[str, Any] = {"command": sys.executable, "args": [SERVER]}


def registry(http: Any = None, **config: Any) -> AbstractAsyncContextManager[Tools]:
    """The control layer's MCP servers; loopback may be reached unless told otherwise."""
    http = {"allow": ("127.0.0.1:*",)} if http is None else http
    return running(McpServers(McpConfig(**config), HttpConfig(**http)))


def register(t: Tools, name: str, user: str = "tester", **fields: Any) -> None:
    t.servers.registry.register(user, name, **fields)


async def test_a_server_is_its_users_alone(tmp_path: Path) -> None:
    with http_server() as (port, _):
        async with registry() as t:
            register(t, "mine", url=f"http://127.0.0.1:{port}/mcp", headers={"X-Key": SECRET})
            assert (await t.call("add", server="mine", a=2, b=3))["structured"] == {"result": 5}
            assert {tool["name"] for tool in await t.list("mine")} >= {"add", "weather"}
            assert list(t.servers.registry.usable("tester")) == ["mine"]
            assert t.servers.registry.describe("tester") == [
                {"name": "mine", "own": True, "at": f"http://127.0.0.1:{port}/mcp"}
            ]
            other = Tools(t.servers)
            other.caller = Caller(user="other", id="else")
            assert list(t.servers.registry.usable("other")) == []
            assert t.servers.registry.describe("other") == []
            with failure("not-found", "'mine' for other"):
                other.start("add", server="mine", a=1, b=1)
            register(t, "mine", "other", url="http://127.0.0.1:1/mcp")  # another one, of that name
            assert (await t.call("add", server="mine", a=1, b=1))["structured"] == {"result": 2}
            await other.failure("add", "remote-failed", server="mine")

            begun = tmp_path / "begun"
            waiting = t.start("wait", server="mine", seconds=60, begun=str(begun))
            while not begun.exists():
                await trio.sleep(0.01)
            t.servers.registry.unregister("tester", "mine")
            with failure("remote-failed", "it is registered no more"):
                await t.caller.result(waiting)
            with failure("not-found"):
                t.start("add", server="mine")
            with failure("not-found"):
                t.servers.registry.unregister("tester", "mine")
            assert list(t.servers.registry.usable("other")) == ["mine"]


async def test_where_a_clients_server_may_be() -> None:
    url = "http://127.0.0.1:9/mcp"
    async with registry({}) as t:
        with failure("permission-denied", "--allow-http"):
            register(t, "x", url=url)
    async with registry({"allow": ("example.com",)}) as t:
        for wrong in (url, "http://example.com:81/", "https://example.com.evil.org/"):
            with failure("permission-denied", "not on this server's allow-list"):
                register(t, "x", url=wrong)
    async with browser() as b, registry({"allow": ("*:*",)}) as t:
        web = await b.web()
        places = (web.url, f"http://localhost:{web.port}/", "http://10.255.255.1/", "http://[::1]/")
        for i, place in enumerate(places):
            register(t, f"x{i}", url=place)
            await t.failure("add", "permission-denied", "not public", server=f"x{i}")
        assert web.accepted == 0
    denied = {"allow": ("127.0.0.1:*",), "deny_networks": ("127.0.0.0/8",)}
    async with browser() as b, registry(denied) as t:
        web = await b.web()
        register(t, "x", url=web.url)
        await t.failure("add", "permission-denied", server="x")
        assert web.accepted == 0


async def test_redirects_are_not_followed() -> None:
    async with browser() as b, registry({"allow": ("127.0.0.1:*",)}) as t:
        inner = await b.web()
        for status in (301, 307):
            hop = await b.web(always(reply(status, b"", f"Location: {inner.url}/mcp")))
            register(t, f"x{status}", url=hop.url)
            await t.failure("add", "remote-failed", server=f"x{status}")
        assert inner.accepted == 0


async def test_secrets_are_in_no_log_and_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Asked] = []
    answers = [
        reply(401, b"who are you?"),
        reply(500, SECRET.encode()),
        reply(200, SECRET.encode(), "Content-Type: application/json"),
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: "
        + SECRET.encode()
        + b"\n\n",
        b"no HTTP " + SECRET.encode() + b"\r\n\r\n",
    ]

    with structlog.testing.capture_logs() as logs:
        async with browser() as b, registry(client_servers=9) as t:
            for i, data in enumerate(answers):

                async def answer(
                    stream: trio.SocketStream, asked: Asked, data: bytes = data
                ) -> None:
                    seen.append(asked)
                    await stream.send_all(data)
                    await stream.send_eof()

                web = await b.web(answer)
                headers = {"Authorization": f"Bearer {SECRET}", "X-Home": "${HOME}"}
                register(t, f"x{i}", url=f"{web.url}/mcp?key={SECRET}", headers=headers)
                error = await t.failure("add", "remote-failed", server=f"x{i}")
                assert SECRET not in str(error)
            shown = json.dumps(t.servers.registry.describe("tester"))
            assert SECRET not in shown
    assert logs, "there is something to look at"
    assert SECRET not in str(logs) + "".join(capfd.readouterr())
    assert seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert seen[0].target == f"/mcp?key={SECRET}"
    assert seen[0].headers["x-home"] == "${HOME}", "the server's environment is none of theirs"


def test_a_restart_does_not_lose_them(tmp_path: Path) -> None:
    http = HttpConfig(allow=("127.0.0.1:*",))
    url = f"http://127.0.0.1:9/mcp?key={SECRET}"

    def names(http: HttpConfig = http) -> list[str]:
        return list(McpServers(McpConfig(), http, tmp_path).registry.usable("ann"))

    first = McpServers(McpConfig(), http, tmp_path).registry
    first.register("ann", "a", url=url, headers={"X": SECRET})
    first.register("ann", "b", url=url)
    first.register("bob", "c", url=url)
    [*files] = tmp_path.iterdir()
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}, "they hold secrets"
    assert sorted(names()) == ["a", "b"]
    again = McpServers(McpConfig(), http, tmp_path).registry
    assert again.usable("ann")["a"].config.headers == {"X": SECRET}
    again.unregister("ann", "a")
    assert names() == ["b"]
    with structlog.testing.capture_logs() as logs:
        assert names(HttpConfig()) == [], "the operator allows it no more"
    assert len(logs) == 2
    assert SECRET not in str(logs)


async def test_what_is_no_server_and_how_many_there_may_be() -> None:
    url = "http://127.0.0.1:9/mcp"

    theirs = {"theirs": {"url": url, "users": ["other"]}, "all": {"url": url}}
    async with registry(servers=theirs, client_servers=2) as t:
        for name, fields in (
            ("a b", {"url": url}),
            ("", {"url": url}),
            ("x", {}),
            ("x", {"url": url, "command": "x"}),
            ("x", {"url": "ftp://127.0.0.1:9/"}),
            ("x", {"url": "http://"}),
            ("x", {"url": f"http://me:{SECRET}@127.0.0.1:9/"}),
            ("x", {"url": url, "args": ["a"]}),
            ("x", {"url": url, "headers": {"a b": "c"}}),
            ("x", {"url": url, "headers": {"a": "b\r\nc: d"}}),
            ("x", {"url": url, "headers": {"Host": "example.com"}}),
        ):
            with pytest.raises(ApiError) as caught:
                register(t, name, **fields)
            assert caught.value.code == "invalid-argument"
            assert SECRET not in str(caught.value)
        with failure("limit-exceeded"):
            register(t, "x", url=url, headers={"a": "b" * 100_000})
        with failure("already-exists", "the operator"):
            register(t, "all", url=url)
        with failure("permission-denied", "the operator's"):
            t.servers.registry.unregister("tester", "all")
        register(t, "theirs", url=url)  # of that name there is none for this user
        with failure("already-exists", "by you"):
            register(t, "theirs", url=url)
        register(t, "x", url=url)
        with failure("limit-exceeded", "client_servers"):
            register(t, "y", url=url)
        register(t, "y", "third", url=url)
        t.servers.registry.unregister("tester", "x")
        register(t, "y", url=url)
    async with registry(client_servers=0) as t:
        with failure("permission-denied", "client_servers"):
            register(t, "x", url=url)


def test_what_clients_say_in_requests() -> None:
    for wrong in ({"a": 1}, {1: "a"}, ["a"], "a"):
        with failure("invalid-argument", "register-mcp: Expected", "$.headers"):
            read("register-mcp", {"name": "x", "headers": wrong}, RegisterMcp)
    assert read("register-mcp", {"name": "x"}, RegisterMcp).headers == {}


async def test_commands_are_the_operators_unless_he_allows_them() -> None:
    async with registry() as t:
        with failure("permission-denied", "client_commands"):
            register(t, "x", **COMMAND)
    async with registry({}, client_commands=True) as t:
        register(t, "x", **COMMAND, env={"TOKEN": "${HOME}"})
        assert t.servers.registry.describe("tester")[0]["at"] == sys.executable
        answer = await t.call("environment", server="x", name="TOKEN")
        assert answer["structured"] == {"result": "${HOME}"}
        t.servers.registry.unregister("tester", "x")
