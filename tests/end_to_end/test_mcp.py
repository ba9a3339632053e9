"""Inferlets in both languages call tools of a real MCP server."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from support.mcp_servers import SERVER as TOOLS
from support.mcp_servers import http_server
from support.outside_programs import LANGUAGES, run
from support.servers import Server, until

from pie_py.cli import main
from pie_py.client.errors import InferletFailed, RpcError
from pie_py.client.sync import Client
from pie_py.testing.script import replaying

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def with_tools() -> Iterator[Server]:
    """A server with an MCP server for everybody and one for somebody else, which end with it."""
    stdio = {"command": sys.executable, "args": [TOOLS]}
    mcp = {"servers": {"tools": stdio, "theirs": {**stdio, "users": ["somebody"]}}}
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        http = {"allow": ["127.0.0.1:*"]}
        with Server(Path(folder), **replaying(Path(folder)), mcp=mcp, http=http) as running:
            yield running
            with running.client() as connected:
                answer = run(connected, "python", "call", "tools", "pid", "{}")
            process = psutil.Process(int(answer.removeprefix("ok ")))
            assert TOOLS in process.cmdline()
        process.wait(10)


@pytest.fixture
def client(with_tools: Server) -> Iterator[Client]:
    with with_tools.client() as connected:
        yield connected


@pytest.mark.parametrize("language", LANGUAGES)
def test_tools(client: Client, language: str) -> None:
    assert run(client, language, "servers") == "tools"
    assert {"add", "weather", "fail"} <= set(run(client, language, "tools", "tools").split())
    assert run(client, language, "call", "tools", "add", '{"a": 2, "b": 3}') == "ok 5"
    assert run(client, language, "call", "tools", "fail", "{}").startswith("error ")
    with pytest.raises(InferletFailed, match="not-found: no MCP server 'theirs'"):
        run(client, language, "call", "theirs", "add", "{}")
    with pytest.raises(InferletFailed, match="remote-failed"):
        run(client, language, "call", "tools", "die", "{}")
    assert run(client, language, "call", "tools", "add", '{"a": 1, "b": 1}') == "ok 2"


@pytest.mark.slow
def test_a_clients_own_server(with_tools: Server, client: Client) -> None:
    def command(*args: str) -> str:
        result = CliRunner().invoke(main, ["mcp", *args, "--endpoint", with_tools.endpoint])
        assert result.exit_code == 0, result.output
        return str(result.output)

    with http_server() as (port, _):
        command("add", "mine", f"http://127.0.0.1:{port}/mcp", "--header", "X-Key=${HOME}")
        assert ["mine", "yes", f"http://127.0.0.1:{port}/mcp"] in [
            line.split() for line in command("list").splitlines()
        ]
        for language in LANGUAGES:
            assert run(client, language, "servers").split() == ["tools", "mine"]
            assert "add" in run(client, language, "tools", "mine").split()
            assert run(client, language, "call", "mine", "add", '{"a": 2, "b": 3}') == "ok 5"
        command("remove", "mine")
    assert run(client, "python", "servers") == "tools"
    with pytest.raises(RpcError, match=r"permission-denied: .*client_commands"):
        client.register_mcp("x", command=[sys.executable, TOOLS])
    with pytest.raises(RpcError, match=r"permission-denied: .*allow-list"):
        client.register_mcp("x", "https://example.com/mcp")
    with pytest.raises(RpcError, match=r"permission-denied: .*operator"):
        client.unregister_mcp("tools")
    for wrong in ({"headers": {"a": 1}}, {"command": ["a"], "env": {1: "a"}}):
        with pytest.raises(TypeError, match="made of texts"):
            client.register_mcp("x", **wrong)


def test_the_command_line_of_a_clients_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_IN_HERE", raising=False)
    for args, told in (
        (("x", "http://x/", "--header", "secret"), "'--header': give NAME=VALUE"),
        (
            ("x", "http://x/", "--header", "A=${NOT_IN_HERE}"),
            "'--header': A refers to ${NOT_IN_HERE}",
        ),
        (("x", "a 'b"), "'TARGET': no URL, and as a command"),
        (("x", ""), "'TARGET': give a URL"),
        (("x",), "Missing argument"),
    ):
        result = CliRunner().invoke(main, ["mcp", "add", *args, "--endpoint", "ipc:///nowhere/x"])
        assert told in result.output
        assert "secret" not in result.output


def test_the_example(client: Client) -> None:
    program = client.upload(EXAMPLES / "mcp_tools.py")
    listed = "".join(str(message) for message in client.launch(program))
    assert "tools add(a, b): Adds two numbers." in listed
    assert client.launch(program, ["tools", "add", '{"a": 2, "b": 3}']).result() == "5"
    with pytest.raises(InferletFailed, match="no such luck"):
        client.launch(program, ["tools", "fail"]).result()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_call_that_is_given_up_is_cancelled(
    client: Client, tmp_path: Path, language: str
) -> None:
    run(client, language, "call", "tools", "pid", "{}")  # it is up
    mark = tmp_path / "mark"
    arguments = json.dumps({"seconds": 60, "mark": str(mark)})
    assert run(client, language, "cancel", "tools", "wait", arguments) == "given up"
    until(mark.exists, 10)


def test_a_secret_that_is_not_there_is_told_at_the_start(short_folder: Path) -> None:
    servers = {"x": {"url": "http://x/", "headers": {"Authorization": "${NOT_IN_HERE}"}}}
    server = Server(short_folder, mcp={"servers": servers})
    assert server.error is not None
    assert "mcp.servers.x.headers.Authorization refers to ${NOT_IN_HERE}" in server.error
