"""MCP servers as real processes: they answer, hang, crash, flood, and harm nobody."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import sys
import threading
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpcore2
import pytest
import trio
from support.mcp_servers import SERVER, Tools, children, http_server, running, start_http, tools

from pie_control.api.mcp.functions import McpServers
from pie_control.api.mcp.stdio import LineTooLong, lines, stdio_transport
from pie_control.errors import ApiError
from pie_py.config.mcp import McpConfig, McpServerConfig
from pie_py.config.processes import GroupTime
from pie_py.config.variables import MissingVariable

PLAIN = str(Path(__file__).parents[1] / "support/plain_mcp_server.py")
STDIO: Any = {"command": sys.executable, "args": [SERVER]}


async def check_everyday(t: Tools, server: str) -> None:
    listed = {tool["name"]: tool for tool in await t.list(server)}
    assert listed["add"]["title"] == "Sum"
    assert listed["add"]["description"] == "Adds two numbers."
    assert set(listed["add"]["input_schema"]["properties"]) == {"a", "b"}
    answer = await t.call("add", server=server, a=2, b=3)
    assert answer["content"] == [{"type": "text", "text": "5"}]
    assert answer["is_error"] is False
    assert answer["structured"] == {"result": 5}
    answer = await t.call("weather", server=server, place="Bonn")
    assert answer["structured"] == {"place": "Bonn", "degrees": 21.5}
    answer = await t.call("fail", server=server)
    assert answer["is_error"] is True
    assert "no such luck" in answer["content"][0]["text"]
    answer = await t.call("add", server=server, a="two")
    assert answer["is_error"] is True
    many = [t.start("wait", server=server, seconds=0.2) for _ in range(8)]
    for handle in many:
        assert json.loads(await t.caller.result(handle))["content"][0]["text"] == "waited"


async def test_stdio() -> None:
    async with tools(test=STDIO) as t:
        assert not children(), "started when it is needed"
        await check_everyday(t, "test")
        assert len(children()) == 1
        with trio.fail_after(10):
            while t.servers.calls:
                await trio.sleep(0.01)


@pytest.mark.nightly
@pytest.mark.slow
async def test_streamable_http_and_a_server_that_comes_back() -> None:
    with http_server() as (port, process):
        async with tools(test={"url": f"http://127.0.0.1:{port}/mcp"}) as t:
            await check_everyday(t, "test")
            await t.failure("large", "remote-failed", size=5 << 20)
            process.kill()
            process.wait()
            await t.failure("add", "remote-failed", a=1, b=1)
            again = await trio.to_thread.run_sync(start_http, port)
            try:
                assert (await t.call("add", a=1, b=1))["structured"] == {"result": 2}
            finally:
                again.kill()
                again.wait()


@pytest.mark.slow
async def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    async with tools(test=STDIO) as t:
        first = (await t.call("pid"))["structured"]["result"]
        begun = tmp_path / "begun"
        waiting = t.start("wait", seconds=60, begun=str(begun))
        with trio.fail_after(30):  # calls made together reach the server in any order
            while not begun.exists():
                await trio.sleep(0.01)
        await t.failure("die", "remote-failed", "test is gone: its process has ended with status 3")
        with pytest.raises(ApiError, match="remote-failed"):
            await t.caller.result(waiting)
        assert (await t.call("pid"))["structured"]["result"] != first
        await t.failure("die", "remote-failed")
        assert (await t.call("add", a=1, b=1))["structured"] == {"result": 2}


async def test_why_a_server_takes_no_input_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.api.mcp.stdio.GRACE_SECONDS", 0.5)

    async with tools(test={"command": sys.executable, "args": [PLAIN]}) as t:
        # What it has started keeps its output open, so that its end does not show there. The
        # SDK asks for the tool's schema after its answer, before or after the end.
        ended = "test is gone: its process has ended with status 3"
        await t.failure("leave", "remote-failed", ended, count=3)
        await t.call("image")
        await t.failure("deafen", "remote-failed", "test is gone: it takes no input any more")


@pytest.mark.nightly
@pytest.mark.slow
async def test_calls_time_out_and_are_cancelled(tmp_path: Path) -> None:
    quick, slow = {**STDIO, "call_seconds": 3.0}, STDIO
    async with tools(quick=quick, test=slow) as t:
        await t.call("pid", server="quick")
        marks = [tmp_path / "late", tmp_path / "given up"]
        await t.failure("wait", "timed-out", server="quick", seconds=60, mark=str(marks[0]))
        handle = t.start("wait", seconds=60, mark=str(marks[1]))
        await t.call("pid")
        t.caller.futures.cancel(handle)
        with trio.fail_after(20):
            while not all(mark.exists() for mark in marks[1:]):
                await trio.sleep(0.05)
        assert (await t.call("add", a=1, b=1))["structured"] == {"result": 2}


FLOOD = "import os\nwhile True: os.write(1, b'x' * 65536)"
SILENT = "import time\ntime.sleep(600)"


@pytest.mark.nightly
async def test_a_server_that_hangs_or_floods_is_ended_and_others_go_on() -> None:
    rough = {**STDIO, "call_seconds": 1.5}
    python: Any = {"command": sys.executable}  # without the SDK, which takes long to import
    flood = {**python, "args": ["-S", "-c", FLOOD, SERVER]}
    silent = {**python, "args": ["-S", "-c", SILENT, SERVER], "start_seconds": 1.0}
    async with tools(rough=rough, flood=flood, silent=silent, test=STDIO) as t:
        first = await t.call("pid", server="rough")
        await t.failure("hang", "timed-out", server="rough")
        assert (await t.call("add", a=1, b=2))["structured"] == {"result": 3}
        # It is started again, after a pause if need be.
        second = await t.patiently("pid", server="rough")
        assert second != first
        told = "a line of more than 67108864 bytes"
        await t.failure("add", "remote-failed", told, server="flood")
        await t.failure("add", "remote-failed", "did not start within 1 s", server="silent")
        assert (await t.call("add", a=1, b=2))["structured"] == {"result": 3}


@pytest.mark.nightly
async def test_a_start_on_a_busy_machine_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is stopped, as if others had the CPU, until it was looked at several times."""
    looks: list[int] = []
    look = GroupTime.goes_on

    def counted(time: GroupTime) -> bool:
        found = look(time)
        looks.append(time._group)
        if len(looks) == 4:
            os.kill(looks[0], signal.SIGCONT)
        return found

    monkeypatch.setattr(GroupTime, "goes_on", counted)
    stops = "import os, runpy, signal, sys; os.kill(os.getpid(), signal.SIGSTOP)"
    code = f"{stops}; runpy.run_path(sys.argv[1], run_name='__main__')"
    plain: Any = {"command": sys.executable, "args": ["-c", code, PLAIN], "start_seconds": 0.3}
    async with tools(plain=plain) as t:
        assert [tool["name"] for tool in await t.list("plain")]
    assert len(looks) >= 4


async def test_servers_that_cannot_start() -> None:
    wrong = {
        "absent": {"command": "/no/such/command"},
        "leaves": {"command": sys.executable, "args": ["-c", "print('hello')"]},
        "closed": {"url": "http://127.0.0.1:1/mcp"},
    }
    async with tools(**wrong) as t:
        await t.failure("x", "remote-failed", "/no/such/command", server="absent")
        for name in ("leaves", "closed"):
            await t.failure("x", "remote-failed", server=name)
        errors = [await t.failure("x", "remote-failed", server="absent") for _ in range(4)]
        assert re.search("keeps failing .*/no/such/command", errors[-1].message)


async def test_certificates_are_read_beside_the_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tens of milliseconds, at each connection: no token of anyone waits for it."""
    threads: list[threading.Thread] = []
    read = httpcore2.default_ssl_context

    def noted() -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return read()

    monkeypatch.setattr(httpcore2, "default_ssl_context", noted)
    async with tools(closed={"url": "http://127.0.0.1:1/mcp"}) as t:
        await t.failure("x", "remote-failed", server="closed")
    assert threads
    assert threading.current_thread() not in threads


GARBLED = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(sys.argv[1].replace("ID", json.dumps(message["id"])), flush=True)
"""


@pytest.mark.nightly
@pytest.mark.slow
async def test_answers_that_make_no_sense_are_errors() -> None:
    answers = (
        "null",
        "[]",
        "{}",
        "[" * 5000,
        '{"jsonrpc": "2.0", "id": ID}',
        '{"jsonrpc": "2.0", "id": ID, "result": null}',
        '{"jsonrpc": "2.0", "id": ID, "result": []}',
        '{"jsonrpc": "2.0", "id": ID, "result": {"protocolVersion": 5}}',
        '{"jsonrpc": "2.0", "id": ID, "result": {"protocolVersion": "1066-10-14"}}',
        '{"jsonrpc": "2.0", "id": ID, "error": "no"}',
        '{"jsonrpc": "2.0", "id": ID, "error": {"code": "x"}}',
        '{"jsonrpc": "2.0", "id": "other", "result": {}}',
        '{"jsonrpc": "2.0", "id": ID, "method": "tools/call", "params": {}}',
        '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": ID}}',
        "\udcff",
    )

    garbled = {
        f"s{i}": {
            "command": sys.executable,
            "args": ["-S", "-c", GARBLED, answer],
            "start_seconds": 3.0,
            "call_seconds": 2.0,
        }
        for i, answer in enumerate(answers)
    }
    async with tools(test=STDIO, **garbled) as t, trio.open_nursery() as nursery:
        for name in garbled:
            nursery.start_soon(partial(t.failure, "x", "remote-failed", server=name))
        assert (await t.call("add", a=1, b=2))["structured"] == {"result": 3}


async def test_a_server_of_the_older_protocol_without_the_sdk() -> None:
    async with tools(test={"command": sys.executable, "args": [PLAIN]}) as t:
        assert [tool["name"] for tool in await t.list()] == ["image", "ask", "chatter"]
        answer = await t.call("image")
        assert answer["content"] == [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]
        answer = await t.call("ask")
        assert "not supported" in answer["content"][0]["text"]
        assert (await t.call("chatter", count=2000))["content"][0]["text"] == "done"
        assert (await t.call("nothing"))["is_error"]


TEXT = b'{"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "text", "text": "%s"}]}}'
UNREADABLE = {
    TEXT % rb"\ud83d": "Invalid JSON",
    TEXT % b"\xff\xfe": "Invalid JSON",
    TEXT % b"x" + b"}": "Invalid JSON",
    TEXT[:-9]: "Invalid JSON",
    TEXT.replace(b"ID", b'"other"'): "'other'",
    TEXT.replace(b"ID", b"99"): "'99'",
    TEXT.replace(b"ID", b'"%s"' % (b"9" * 5000)): "'99999",
    TEXT.replace(b"ID", b"null"): "cannot be read",
    b"[" + TEXT + b"]": "cannot be read",
    b'{"jsonrpc": "2.0", "id": ID}': "cannot be read",
    b'{"jsonrpc": "2.0", "id": ID, "result": null}': "cannot be read",
    b'{"jsonrpc": "2.0", "id": ID, "result": {"content": null}}': "protocol: content: Input should",
    b'{"jsonrpc": "2.0", "id": ID, "result": {"content": [], "structuredContent": {"a": 1e999}}}': (
        "JSON"
    ),
    b'{"jsonrpc": "2.0", "id": ID, "error": {"code": "x"}}': "cannot be read",
    b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "no sense"}}': "no sense",
} | {
    b'{"jsonrpc": "2.0", "id": ID, "error": {"code": %d, "message": "%s"}}' % each: (
        f"plain answers: {each[1].decode()}"
    )
    for each in (
        *((code, b"no way") for code in (-32099, -32042, -32022, -32001, -32000, -32700, 0, 7)),
        (-32600, b"Session terminated"),
    )
}


async def test_a_server_s_errors_and_what_cannot_be_read_are_its_answers() -> None:
    async with tools(plain={"command": sys.executable, "args": [PLAIN, SERVER]}) as t:
        await t.list("plain")
        [server] = children()
        for answer, why in UNREADABLE.items():
            await t.failure("raw", "remote-failed", why, server="plain", answer=answer.hex())
        lines = TEXT % "\u2028".encode()
        read = await t.call("raw", server="plain", answer=b"\xef\xbb\xbf".hex() + lines.hex())
        assert read["content"][0]["text"] == "\u2028"
        assert children() == [server], "it has not been started again"


async def test_a_list_of_tools_without_an_end() -> None:
    endless = {"command": sys.executable, "args": [PLAIN, "endless"]}
    async with tools(test=endless, small={**endless, "message_bytes": 1000}) as t:
        with pytest.raises(ApiError, match=r"limit-exceeded: .* more than 100 pages"):
            await t.list()
        with pytest.raises(ApiError, match=r"limit-exceeded: .* more than 1000 bytes"):
            await t.list("small")


async def test_who_may_use_what_and_what_are_arguments() -> None:
    async with tools(mine={**STDIO, "users": ["tester"]}, theirs={**STDIO, "users": []}) as t:
        assert list(t.servers.registry.usable("tester")) == ["mine"]
        assert list(t.servers.registry.usable("somebody")) == []
        for server in ("theirs", "unknown"):
            with pytest.raises(ApiError, match=f"not-found: no MCP server '{server}'.*mine"):
                t.start("add", server=server)
        for text in (
            "",
            "[]",
            "1",
            '{"a": NaN}',
            '{"a":' * 10_000,
            "{",
            '{"a": ' + "9" * 9999,
            '{"a": 1e999}',
            r'{"a": "\ud800"}',
            r'{"\udfff": 1}',
            '{"a": ' + "[" * 100 + "]" * 100 + "}",
        ):
            with pytest.raises(ApiError, match="invalid-argument"):
                t.servers.mcp_call_tool(t.caller, "mine", "add", text)  # type: ignore[arg-type]
        for text in (" " * (3 << 20), '{"a": [' + "[]," * 20_000 + "1]}"):
            with pytest.raises(ApiError, match="limit-exceeded"):
                t.servers.mcp_call_tool(t.caller, "mine", "add", text)  # type: ignore[arg-type]
        with pytest.raises(ApiError, match="not-found: no tool has a name of over 256"):
            t.servers.mcp_call_tool(t.caller, "mine", "x" * 257, "{}")  # type: ignore[arg-type]


@pytest.mark.parametrize("over_http", [False, True])
async def test_arguments_that_cannot_be_written_harm_no_other_call(over_http: bool) -> None:
    with http_server() if over_http else nullcontext((0, None)) as (port, _):
        server = {"url": f"http://127.0.0.1:{port}/mcp"} if over_http else STDIO
        async with tools(test=server) as t:
            other = Tools(t.servers)
            other.caller.id = "other"
            under_way = other.start("wait", seconds=0.5)
            await t.call("add", a=1, b=2)
            connection = t.servers.registry.find("tester", "test")._connection
            assert connection is not None
            for value in (r'"\ud800"', "[" * 100 + "]" * 100):
                with pytest.raises(ApiError, match="invalid-argument"):
                    t.servers.mcp_call_tool(t.caller, "test", "add", f'{{"a": {value}}}')  # type: ignore[arg-type]
            # What may be written arrives, and the server says what it thinks of it.
            for value in (r'"\ud83d\ude00"', "[" * 99 + "]" * 99, "9" * 4000):
                handle = t.servers.mcp_call_tool(t.caller, "test", "add", f'{{"a": {value}}}')  # type: ignore[arg-type]
                assert json.loads(await t.caller.result(handle))["content"]
            await other.caller.result(under_way)
            assert connection.failure is None
            assert t.servers.registry.find("tester", "test")._connection is connection


async def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.api.mcp.functions.INSTANCE_CALLS", 2)
    monkeypatch.setattr("pie_control.api.mcp.functions.USER_CALLS", 3)
    servers = McpServers(McpConfig(servers={"test": STDIO}))
    async with running(servers) as t:
        other = Tools(servers)
        other.caller.id = "other"
        for _ in range(2):
            t.start("wait", seconds=60)
        with pytest.raises(ApiError, match="limit-exceeded: 2 calls"):
            t.start("pid")
        other.start("wait", seconds=60)
        with pytest.raises(ApiError, match="limit-exceeded: 3 calls of this user"):
            other.start("pid")
        t.caller.futures.close()  # the instance has ended
        with trio.fail_after(30):
            while servers.calls > 1:
                await trio.sleep(0.01)
        first = (await t.call("pid"))["structured"]
        for size in ((3 << 20) // 2, 3 << 20, 9 << 20):
            await t.failure("large", "limit-exceeded", size=size)
        assert (await t.call("pid"))["structured"] == first, "nobody else is harmed"


async def test_secrets_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "open sesame")
    monkeypatch.setenv("NOT_FOR_SERVERS", "hidden")

    noisy = [SERVER, "noise"]  # which also says what is no message
    async with tools(test={**STDIO, "args": noisy, "env": {"TOKEN": "is ${A_SECRET}"}}) as t:
        for name, value in (("TOKEN", "is open sesame"), ("NOT_FOR_SERVERS", "nothing")):
            answer = await t.call("environment", name=name)
            assert answer["structured"] == {"result": value}
    missing = {"test": {"url": "http://x/", "headers": {"Authorization": "${NO_SUCH_THING}"}}}
    with pytest.raises(MissingVariable, match=r"mcp\.servers\.test\.headers\.Authorization"):
        McpServers(McpConfig(servers=missing))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"command": "x", "url": "http://x"},
        {"url": "ftp://x"},
        {"command": "x", "headers": {"a": "b"}},
        {"url": "http://x", "args": ["a"]},
    ],
)
def test_a_configuration_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"an MCP server has either|does not start|goes with"):
        McpConfig(servers={"x": wrong})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="a name has"):
        McpConfig(servers={"x y": STDIO})


async def test_lines_of_any_pieces() -> None:
    data = b"one\n\ntwo two\n  \n" + b"x" * 30 + b"\nthree\n" + b"y" * 11 + b"\nrest"
    whole = [b"one", b"two two", b"three"]

    for size in (1, 2, 3, 7, 12, 100):
        reader, writer = os.pipe()
        os.set_blocking(writer, True)
        found = []
        async with trio.open_nursery() as nursery:

            async def write(fd: int = writer, size: int = size) -> None:
                async with trio.lowlevel.FdStream(fd) as out:
                    for at in range(0, len(data), size):
                        await out.send_all(data[at : at + size])
                        await trio.lowlevel.checkpoint()

            nursery.start_soon(write)
            async with trio.lowlevel.FdStream(reader) as stream:
                async for line in lines(stream, 10):
                    found.append(line)
        assert [line for line, complete in found if complete] == whole
        assert [line for line, complete in found if not complete] == [b"x" * 10, b"y" * 10]


async def test_a_line_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.api.mcp.stdio.SKIPPED_BYTES", 5000)

    reader, writer = os.pipe()
    os.write(writer, b"x" * 10_000)
    os.close(writer)
    async with trio.lowlevel.FdStream(reader) as stream:
        pieces = lines(stream, 50)
        assert await anext(pieces) == (b"x" * 50, False)
        with pytest.raises(LineTooLong):
            await anext(pieces)


TELLS = """
import json, os, sys
with open(sys.argv[1] + ".new", "w") as file:
    json.dump(sys.argv[2:], file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


async def test_arguments_reach_a_command_as_they_are(tmp_path: Path) -> None:
    told, trace = tmp_path / "told", tmp_path / "trace"
    tricks = [f"; touch {trace}", f"$(touch {trace})", f"`touch {trace}`", f"| tee {trace}", "*"]
    config = McpServerConfig(
        command=sys.executable, args=("-c", TELLS, str(told), *tricks), folder=tmp_path
    )

    with trio.fail_after(60):
        async with stdio_transport("tricks", config, lambda: None, lambda reason: None, bool):
            while not told.exists():
                await trio.sleep(0.02)
    assert json.loads(told.read_text()) == tricks
    assert not trace.exists()


async def test_a_command_line_is_no_command() -> None:
    config = McpServerConfig(command=f"{sys.executable} -c pass; true")
    with pytest.raises(FileNotFoundError):
        async with stdio_transport("line", config, lambda: None, lambda reason: None, bool):
            raise AssertionError("a shell has run it")


async def test_tools_that_are_listed_no_more_are_forgotten() -> None:
    """A server that lists others each time takes no more and more memory."""
    async with tools(test={"command": sys.executable, "args": [PLAIN, "renames"]}) as t:
        for _ in range(3):
            await t.list()
        assert t.servers.registry.find("tester", "test").repeatable == {"tool2"}
