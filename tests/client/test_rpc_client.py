from __future__ import annotations

import contextlib
import inspect
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, assert_type

import anyio
import anyio.to_thread
import pytest
import trio.testing
from support.rpc_bench import Bench, Proxy
from support.servers import until

from pie_control.instances.instance import InstanceState
from pie_control.instances.log import LINE_OVERHEAD
from pie_control.rpc.requests import LOG_BYTES
from pie_control.rpc.server import EndpointInUse
from pie_py.client import (
    Call,
    Client,
    ClientError,
    ConnectionLost,
    InferletFailed,
    Instance,
    Remote,
    RpcError,
    ServerUnreachable,
    UsageError,
    sync,
)
from pie_py.client.connection import Connection
from pie_py.config.endpoint import parse_endpoint


@pytest.fixture
def proxy(bench: Bench) -> Proxy:
    return Proxy(bench)


@pytest.fixture
def client(bench: Bench) -> Iterator[sync.Client]:
    with sync.Client(bench.endpoint) as connected:
        yield connected


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


def settle(bench: Bench, client: sync.Client) -> None:
    """Returns when the server has handled all that the client has said."""
    client.server_info()
    bench.call(trio.testing.wait_all_tasks_blocked)


async def test_launch_messages_result(bench: Bench) -> None:
    async with Client(bench.endpoint) as client:
        instance = await client.launch("count", ["2000"])
        assert [m async for m in instance] == [str(i) for i in range(2000)]
        assert await instance.result() == "counted"
        assert await instance.receive() is None

        talker = await client.launch("echo")
        for text in ("one", "zwei", "三", ""):
            await talker.send(text)
            assert await talker.receive() == text
        await talker.send("stop")
        assert await talker.result() == "stopped"
        with pytest.raises(RpcError, match="has ended"):
            await talker.send("too late")

        blob = await client.launch("echo_bytes")
        await blob.send(b"\x00\xff" * 1000)
        assert await blob.receive() == b"\x00\xff" * 1000


def test_sync_client(bench: Bench) -> None:
    with sync.Client(bench.endpoint) as client:
        assert client.user == "local"
        instance = client.launch("count", ["300"])
        assert list(instance) == [str(i) for i in range(300)]
        assert instance.result() == "counted"
        talker = client.launch("echo")
        talker.send("hello")
        assert talker.receive() == "hello"
        assert talker.logs()["lines"][0]["text"] == "hello"
        assert not talker.ended
        talker.cancel()
        with pytest.raises(InferletFailed, match="killed: by local") as failure:
            talker.result()
        assert failure.value.state == "killed"


def test_a_client_without_with_connects_at_its_first_use(bench: Bench) -> None:
    client = sync.Client(bench.endpoint)
    assert client.user == "local"
    assert list(client.launch("count", ["3"])) == ["0", "1", "2"]
    client.close()
    client.close()
    with pytest.raises(Exception, match="no longer connected"):
        client.models()


def test_a_program_that_never_closes_its_client_ends(bench: Bench) -> None:
    code = (
        "import sys; from pie_py.client.sync import Client; client = Client(sys.argv[1]);"
        " print(client.user, client.launch('count', ['2']).result())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, bench.endpoint], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "local counted\n", "")


@pytest.mark.parametrize("kind", [Client, Instance, Call, Remote])
def test_sync_classes_have_the_asynchronous_methods(kind: type) -> None:
    blocking = getattr(sync, kind.__name__)
    for name, method in vars(kind).items():
        if name.startswith("_") and (kind, name) != (Client, "__init__"):
            continue
        found = inspect.getattr_static(blocking, name)
        if isinstance(method, property):
            assert isinstance(found, property), name
            continue
        assert not re.search("await |async (with|for)", getattr(blocking, name).__doc__), name
        wanted, given = (inspect.signature(getattr(one, name)) for one in (kind, blocking))
        parameters = dict(given.parameters)
        if kind is Instance and name in ("receive", "result"):
            del parameters["timeout"]
        assert parameters == dict(wanted.parameters), name
        assert "Async" not in str(given.return_annotation), name


def test_types_of_the_sync_client(bench: Bench) -> None:
    with sync.Client(bench.endpoint) as client:
        assert_type(client.models(), list[dict[str, Any]])
        talker = assert_type(client.launch("echo"), sync.Instance)
        assert_type(client.stream(len, "x"), Iterator[Any])
        talker.send("stop")
        assert_type(talker.result(timeout=20), str)
        with pytest.raises(TypeError, match="program"):
            client.launch()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="endpont"):
        sync.Client(endpont="")  # type: ignore[call-arg]


def test_a_long_log_comes_in_parts(client: sync.Client, bench: Bench) -> None:
    talker = client.launch("echo")
    sent = [f"{number} {'x' * 4000}" for number in range(100)]
    log = bench.instance(talker.id).log
    for text in sent:
        log.add("info", text)
    part, following = log.part(0, LOG_BYTES)
    assert 20 < len(part) == following < 40
    assert [line["text"] for line in talker.logs()["lines"]] == sent
    found = client.logs(talker.id, after=90)
    assert [line["text"] for line in found["lines"]] == sent[90:]
    assert found["next"] == 100
    assert talker.logs(after=1000) == {"lines": [], "next": 100, "ended": False}
    log.shrink(50 * (len(sent[50]) + LINE_OVERHEAD))  # as if it slept
    assert [line["text"] for line in talker.logs()["lines"]] == sent[50:]
    talker.cancel()


def test_a_sync_client_waits_as_long_as_it_is_told(client: sync.Client) -> None:
    talker = client.launch("echo")
    for wait in (talker.receive, talker.result):
        with pytest.raises(TimeoutError):
            wait(timeout=0.05)
    talker.send("one")
    talker.send("stop")
    assert talker.result(timeout=20) == "stopped"
    assert [talker.receive(timeout=20), talker.receive(timeout=0)] == ["one", None]


def test_an_interrupted_sync_call_takes_no_message(client: sync.Client) -> None:
    main = threading.get_ident()
    talker = client.launch("echo")
    threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        talker.receive()
    talker.send("one")
    assert talker.receive(timeout=20) == "one"


def test_errors_of_an_inferlet(client: sync.Client) -> None:
    with pytest.raises(InferletFailed, match=r"^it broke$"):
        client.launch("fail", ["it broke"]).result()
    with pytest.raises(UsageError, match="usage: give a prompt"):
        client.launch("fail", ["usage: give a prompt"]).result()
    with pytest.raises(RpcError, match="did you mean count"):
        client.launch("coumt")
    with pytest.raises(RpcError, match="no instance 'nobody'"):
        client.attach("nobody")


def test_what_cannot_be_sent_is_an_error_at_once_and_later_requests_are_made(
    client: sync.Client,
) -> None:
    instance = client.launch("echo")
    for message, text in (
        ([object()], "cannot be sent: .*object"),
        ({1, 2}, "the request cannot be read: .*text or bytes"),
        ("\ud800", "cannot be sent: .*surrogates"),
        ([1 << 70], "cannot be sent"),
        ({1: "x"}, "the request cannot be read"),
    ):
        with pytest.raises(RpcError, match=f"invalid-argument: .*{text}"):
            instance.send(message)  # type: ignore[arg-type]
    instance.send("stop")
    assert instance.result() == "stopped"


def test_queries(client: sync.Client) -> None:
    info = client.server_info()
    assert (info["user"], info["contract"]) == ("local", "0.1.0")
    assert info["pid"] > 0
    assert client.models() == []
    assert client.stats() == {}
    sleeper = client.launch("sleep", ["x"])
    client.launch("count", ["0"]).result()
    assert [i["id"] for i in client.instances()] == [sleeper.id]
    found = client.instances(ended=True)
    assert [i["state"] for i in found] == ["running", "finished"]
    assert found[0]["attached"]
    assert found[0]["args"] == ["x"]
    assert {p["name"] for p in client.programs()} >= {"count", "sleep"}


def test_a_list_of_instances_has_the_beginning_of_their_arguments(client: sync.Client) -> None:
    for args in (["a", "b" * 1020], ["x" * 500_000, "y"], ["z"] * 5000):
        client.launch("sleep", args)
    short, long, many = (one["args"] for one in client.instances())
    assert short == ["a", "b" * 1020]
    assert long == ["x" * 1024 + "...", "..."]
    assert many == ["z"] * 512 + ["..."]


def test_upload_sends_bytes_once(proxy: Proxy, tmp_path: Path) -> None:
    source = ("# " + "x" * 70 + "\n") * 30_000  # more than one chunk would be, were it Wasm
    program = b"\0asm" + source.encode()
    with sync.Client(proxy.endpoint) as client:
        digest = client.upload(program, name="big")
        assert proxy.bytes_up > len(program)
        before = proxy.bytes_up
        assert client.upload(program, name="again") == digest
        assert proxy.bytes_up - before < 4000
        found = {p["name"]: p for p in client.programs()}
        assert found["again"]["hash"] == digest
        assert found["again"]["kind"] == "component"

        path = tmp_path / "hello.py"
        path.write_text("async def main(args): ...\n")
        client.upload(path)
        assert client.programs()[-1]["name"] == "hello"


def test_upload_refuses_what_cannot_run(client: sync.Client) -> None:
    refused = (
        (b"\0asm core", "core", "program-rejected: a core module"),
        (b"x = 1\ndef (:\n", "bad", r"program-rejected: .*bad\.py, line 2: .*\n    def \("),
        (b"\x89PNG\xff", "picture", "neither Wasm nor a Python source"),
        (bytes(5 << 20), "large", "takes 4194304 at most"),
        (b"x = 1", "../etc", "cannot name a program"),
        (b"", "nothing", "empty"),
    )
    for program, name, told in refused:
        with pytest.raises(RpcError, match=told):
            client.upload(program, name=name)
    assert not any(p["name"] in ("core", "bad", "picture") for p in client.programs())


async def test_a_dropped_connection_loses_and_repeats_nothing(proxy: Proxy, bench: Bench) -> None:

    async with Client(proxy.endpoint) as client:
        counter = await client.launch("count", ["20000"])
        talker = await client.launch("echo")
        for i in range(100):
            await talker.send(f"text {i}")
            if i % 30 == 7:  # the text may have arrived, and the answer may be on its way
                await anyio.to_thread.run_sync(proxy.cut)
            assert await talker.receive() == f"text {i}"
            if i % 10 == 0:
                assert await client.launch("count", ["0"]) is not None
        count = 0
        async for message in counter:
            assert message == str(count)
            count += 1
            if count % 4000 == 0:
                await anyio.to_thread.run_sync(proxy.cut)
        assert count == 20000
        assert await counter.result() == "counted"
    assert proxy.connections > 3
    assert bench.behaviours.launched == 12  # no request was done twice


def test_a_dropped_connection_in_the_middle_of_an_upload(proxy: Proxy) -> None:
    program = b"\0asm" + bytes(range(256)) * (14 << 10)
    stop = threading.Event()

    def cut_often() -> None:
        while not stop.wait(0.02):
            proxy.cut()

    with sync.Client(proxy.endpoint) as client:
        thread = threading.Thread(target=cut_often)
        thread.start()
        digest = client.upload(program, name="big")
        stop.set()
        thread.join()
        assert client.upload(program, name="big") == digest


def test_a_reader_that_does_not_read_holds_the_instance_up(
    client: sync.Client, bench: Bench
) -> None:
    instance = client.launch("flood")

    def sent() -> int:
        return int((bench.instance(instance.id).args or ["0"])[0])

    until(lambda: not bench.instance(instance.id).outbox.has_room)
    settle(bench, client)
    held = sent()
    settle(bench, client)
    assert sent() == held
    assert held * (16 << 10) <= bench.config.limits.mailbox_bytes + (1 << 20) + (64 << 10)
    for _ in range(held):  # reading lets it go on
        assert instance.receive() == bytes(16 << 10)
    until(lambda: sent() > held)
    instance.cancel()


def has_open_request(bench: Bench) -> bool:
    """Whether the server has yet to answer a request of the one session that there is."""

    def look() -> bool:
        [session] = bench.rpc.sessions.all
        return any(request.answer is None for request in session.pending.values())

    return bool(bench.call(look))


def test_an_instance_that_does_not_receive_holds_the_client_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pie_control.instances.instance.MAILBOX_MESSAGES", 3)
    with Bench(tmp_path) as bench, sync.Client(bench.endpoint) as client:
        sleeper = client.launch("sleep")
        sent = 0

        def send() -> None:
            nonlocal sent
            with contextlib.suppress(RpcError):
                while True:
                    sleeper.send("x")
                    sent += 1

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: sent == 3)
        until(lambda: has_open_request(bench))
        settle(bench, client)
        assert sent == 3
        client.kill(sleeper.id)  # what waits for room learns that there will be none
        thread.join()
        assert sent == 3


def test_messages_that_wait_for_room_have_a_bound_by_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pie_control.instances.instance.MAILBOX_MESSAGES", 1)
    with Bench(tmp_path) as bench, sync.Client(bench.endpoint) as client:
        sleeper, other = client.launch("sleep"), client.launch("sleep")
        bench.behaviours.message_share.size = 100
        sleeper.send("x")

        def wait_for_room() -> None:
            with contextlib.suppress(RpcError):  # the instance ends
                while True:
                    sleeper.send(b"y" * 100)

        thread = threading.Thread(target=wait_for_room)
        thread.start()
        until(lambda: bench.call(lambda: len(bench.instance(sleeper.id).blobs) == 1))
        until(lambda: has_open_request(bench))
        with sync.Client(bench.endpoint) as another:
            with pytest.raises(RpcError, match="limit-exceeded: 100 bytes of your messages wait"):
                another.attach(sleeper.id).send("z")
            another.attach(other.id).send("z")  # there is room
            client.kill(sleeper.id)
            thread.join()


def test_result_waits_without_a_reader(client: sync.Client) -> None:
    instance = client.launch("count", ["3000"])
    assert instance.result() == "counted"
    assert len(list(instance)) == 3000


def test_what_nobody_reads_has_a_bound_while_a_result_is_waited_for(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pie_py.client.stream.MOST_KEPT", 1 << 20)
    with pytest.raises(ClientError, match="has sent 1 MB that nobody has read"):
        client.launch("flood").result(timeout=10)


def test_detached_instances_and_attach(bench: Bench) -> None:
    with sync.Client(bench.endpoint) as client:
        instance = client.launch("count", ["500"], detached=True)
        with pytest.raises(Exception, match="attach to read"):
            instance.receive()
    assert bench.instance(instance.id).client.left_at is None
    with sync.Client(bench.endpoint) as client:
        found = client.attach(instance.id)
        assert list(found) == [str(i) for i in range(500)]
        assert found.result() == "counted"
        assert client.result(instance.id) == "counted"
    with sync.Client(bench.endpoint) as client:
        late = client.attach(instance.id)
        assert list(late) == []
        assert late.result() == "counted"


@pytest.mark.anyio
async def test_an_instance_that_is_attached_to_twice_has_one_reader(bench: Bench) -> None:
    async with Client(bench.endpoint) as client:
        launched = await client.launch("count", ["2000"], detached=True)
        first, second = [client.attach(launched.id) for _ in range(2)]
        found: list[Instance] = []

        async def attach(asked: Awaitable[Instance]) -> None:
            found.append(await asked)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attach, first)
            tasks.start_soon(attach, second)
        assert found[0] is found[1]
        with anyio.fail_after(20):
            assert [text async for text in found[0]] == [str(i) for i in range(2000)]


@pytest.mark.anyio
async def test_who_gives_up_a_detachment_reads_no_more(bench: Bench) -> None:
    async with Client(bench.endpoint) as client:
        instance = await client.launch("echo")
        with anyio.move_on_after(0):
            await instance.detach()
        with anyio.fail_after(20), pytest.raises(RpcError, match="has detached"):
            await instance.receive()


def test_a_vanished_client_is_noticed(proxy: Proxy, bench: Bench) -> None:
    with sync.Client(proxy.endpoint) as client:
        waiting = client.launch("sleep")
        alone = client.launch("sleep", detached=True)
        assert bench.instance(waiting.id).client.attached
        proxy.open = False
        proxy.cut()
        until(lambda: bench.instance(waiting.id).client.left_at is not None)
        assert not bench.instance(waiting.id).client.attached
        assert bench.instance(alone.id).client.left_at is None
        proxy.open = True
        until(lambda: bench.instance(waiting.id).client.attached)
        assert bench.instance(waiting.id).client.left_at is None
    until(lambda: bench.instance(waiting.id).client.left_at is not None)


async def test_a_vanished_server_is_noticed(bench: Bench) -> None:
    async with Client(bench.endpoint, patience=1) as client:
        instance = await client.launch("sleep")
        await anyio.to_thread.run_sync(bench.stop)
        with pytest.raises(ConnectionLost, match="the server stops"):
            await instance.result()
        with pytest.raises(ConnectionLost):
            await client.models()


async def test_who_is_given_up_is_not_connected_to_again() -> None:
    """A connection ends with its session: else it would knock for as long as its client lives."""

    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = parse_endpoint(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        connection = Connection(endpoint, None, patience=0.2)
        async with anyio.create_task_group() as tasks:
            await tasks.start(connection.run)
            assert isinstance(await connection.ready(), ServerUnreachable)


async def test_nobody_listens() -> None:
    for endpoint, told in (
        ("tcp://127.0.0.1:1", "no server at tcp://127.0.0.1:1;.*pie-py serve"),
        ("http://example", "is no endpoint"),
        ("tcp://192.0.2.1:7743", "wants a key"),
    ):
        with pytest.raises(ServerUnreachable, match=told):
            async with Client(endpoint):
                raise AssertionError


async def test_the_client_alone_cannot_start_a_server_where_none_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIE_PY_ENDPOINT", "tcp://127.0.0.1:1")
    monkeypatch.setattr("pie_py.client.local.find_spec", lambda name: None)
    with pytest.raises(ServerUnreachable, match="none can be started: this is the client alone"):
        async with Client.local():
            raise AssertionError


async def test_exceptions_of_the_user_pass_through(bench: Bench) -> None:
    async def fail() -> None:
        async with Client(bench.endpoint) as client:
            await client.launch("sleep")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()


async def test_a_launch_that_is_given_up_ends(bench: Bench) -> None:
    async with Client(bench.endpoint) as client:
        with anyio.move_on_after(0) as scope:
            await client.launch("sleep")
        assert scope.cancelled_caught
        await client.server_info()  # answered after the launch
        with anyio.fail_after(20):
            while any(i.state is not InstanceState.KILLED for i in bench.behaviours.instances()):
                await anyio.sleep(0.01)


@pytest.mark.parametrize("which", ["oldest", "newest"])
async def test_a_request_waits_for_the_end_of_any_other_where_there_are_too_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr("pie_py.client.connection.MAX_CALLS", 2)
    async with Client(bench.endpoint) as client, anyio.create_task_group() as tasks:
        scopes = [anyio.CancelScope(), anyio.CancelScope()]
        sleeps = [await client.launch("sleep") for _ in scopes]

        async def wait(number: int) -> None:
            with scopes[number]:
                await client.result(sleeps[number].id)

        async def ask() -> None:
            with anyio.fail_after(10):
                await client.server_info()
            tasks.cancel_scope.cancel()

        for number in range(2):
            tasks.start_soon(wait, number)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        scopes[0 if which == "oldest" else 1].cancel()


def test_ipc_and_an_endpoint_in_use(tmp_path: Path) -> None:
    with Bench(tmp_path / "a", f"ipc://{tmp_path}/door") as bench:
        with sync.Client(bench.endpoint) as client:
            assert client.launch("count", ["0"]).result() == "counted"
        with pytest.raises(EndpointInUse, match="--endpoint"):
            Bench(tmp_path / "b", bench.endpoint).__enter__()
    with Bench(tmp_path / "c") as first, pytest.raises(EndpointInUse, match="in use already"):
        Bench(tmp_path / "d", first.endpoint).__enter__()


def test_too_large_messages(tmp_path: Path) -> None:
    with Bench(tmp_path, message_bytes=1000) as bench, sync.Client(bench.endpoint) as client:
        talker = client.launch("echo")
        with pytest.raises(RpcError, match="a message of 1001 bytes; this server takes 1000"):
            talker.send("x" * 1001)
        talker.send("x" * 1000)
        assert talker.receive() == "x" * 1000
        with pytest.raises(RpcError, match="arguments have more than"):
            client.launch("count", ["9" * ((1 << 20) + 1)])
        with pytest.raises(RpcError, match="this server takes"):
            client.launch("count", ["9" * (1 << 23)])
