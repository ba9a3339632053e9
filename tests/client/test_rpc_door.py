"""What comes to the server's door from clients that are not ours, or not allowed in."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
import zmq
from support.rpc_bench import FAST, Bench, Proxy
from support.servers import until

from pie_control.instances.instance import Instance, InstanceState
from pie_control.programs.store import Program
from pie_control.rpc.auth import NotKnownNow
from pie_control.rpc.server import EndpointRefused
from pie_control.rpc.sessions import MAX_SESSIONS
from pie_py.client import RpcError, ServerUnreachable
from pie_py.client.sync import Client
from pie_py.config.keys import Admitted, ClientKey, KeyProblem, KeyStore
from pie_py.wire.rpc import (
    PROTOCOL,
    Ack,
    Bye,
    Failure,
    Hello,
    Items,
    Message,
    Refused,
    Request,
    Response,
    Resume,
    Welcome,
    Who,
    decode,
    encode,
)


class Raw:
    """A DEALER that says whatever a test wants, with a user's key and a routing id or without."""

    def __init__(
        self, endpoint: str, key: ClientKey | None = None, routing_id: bytes | None = None
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVTIMEO, 10_000)
        if routing_id is not None:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if key is not None:
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
        self.socket.connect(endpoint)

    def say(self, message: Message) -> None:
        self.socket.send(encode(message))

    def hear(self) -> Message:
        return decode(self.socket.recv())

    def ask(self, message: Message) -> Message:
        self.say(message)
        return self.hear()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)


def works(bench: Bench) -> None:
    with Client(bench.endpoint) as client:
        assert client.launch("count", ["3"]).result() == "counted"


def test_an_answer_that_has_no_form_is_that_request_s_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: Any = bench.rpc._requests
    with Client(bench.endpoint) as client:
        monkeypatch.setattr(requests._parts.goals, "missed", 1 << 64)
        with pytest.raises(RpcError, match="internal"):
            client.server_info()
        monkeypatch.setattr(requests._parts.goals, "missed", 5)
        assert client.server_info()["deadlines_missed"] == 5


def test_garbage_does_no_harm(bench: Bench) -> None:
    chance = random.Random(7)
    numbers = itertools.count(1)
    port = int(bench.endpoint.rpartition(":")[2])
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(chance.randbytes(chance.randrange(300)))
    with Raw(bench.endpoint) as raw:
        for _ in range(200):
            raw.socket.send(chance.randbytes(chance.randrange(100)))
        raw.socket.send_multipart([b"", b"two", b"frames"])
        raw.socket.send(b"\x91" * 5000)  # nested arrays
        raw.socket.send(b"\xdd\xff\xff\xff\xff")  # an array of 4 billion
        raw.say(Hello(PROTOCOL, bytes(16), "garbage"))
        while isinstance(answer := raw.hear(), Refused):
            assert "what it was sent is not" in answer.message
        assert isinstance(answer, Welcome)
        beyond = {"program": "count", "args": ["1"], "window": 1 << 63}  # what no list has
        number = {"program": "count", "args": [1]}
        for params in ({}, {"program": 3}, number, {"window": -1}, beyond):
            answer = raw.ask(Request(next(numbers), 0, "launch", params))
            assert isinstance(answer, Failure)
            assert answer.code == "invalid-argument"
        answer = raw.ask(Request(next(numbers), 0, "nonsense", {}))
        assert isinstance(answer, Failure)
        assert "there are server, models" in answer.message
        refused = raw.ask(Items("nobody", 0, []))
        assert isinstance(refused, Refused), "a server reads nothing that is for clients"
        raw.say(Ack("nobody", 1 << 62))
        assert type(raw.ask(Resume("nobody", 5, 9))).__name__ == "Closed"
    works(bench)


@pytest.mark.parametrize(
    "frame",
    [
        msgpack.packb(["request", 1, 0, "has", {1: "x"}]),
        msgpack.packb(["request", 1, 0, "has", "x"]),
        msgpack.packb(["request", 1, 0, b"has", {}]),
        msgpack.packb(["request", 1]),
        b"\x95\xa7request\x01\x00\xa3has\x81\xa1x\xa1\xff",  # not UTF-8
        b"\x95\xa7request\x01\x00\xa3has\x81",  # cut off
        b"\x95\xa7request\x01\x00\xa3has" + b"\x91" * 5000,  # nested arrays
    ],
)
def test_a_request_that_cannot_be_read_fails(bench: Bench, frame: bytes) -> None:
    with Raw(bench.endpoint) as raw:
        raw.socket.send(frame)
        assert isinstance(raw.hear(), Who)
        raw.ask(Hello(PROTOCOL, bytes(16), "unreadable"))
        for _ in range(2):  # also when it is sent again
            raw.socket.send(frame)
            answer = raw.hear()
            assert isinstance(answer, Failure)
            assert (answer.number, answer.code) == (1, "invalid-argument")
            assert "the request cannot be read" in answer.message
        assert isinstance(raw.ask(Request(2, 2, "server", {})), Response)


def test_every_message_has_one_frame(bench: Bench) -> None:
    """libzmq aborts a client that has read some parts of a message when its connection breaks."""
    with Raw(bench.endpoint) as raw:
        assert isinstance(raw.ask(Hello(PROTOCOL, bytes(16), "frames")), Welcome)
        for number in range(1, 101):
            raw.say(Request(number, 0, "server", {}))
        answers = [raw.socket.recv_multipart() for _ in range(100)]
    assert [len(frames) for frames in answers] == [1] * 100


@pytest.mark.usefixtures("little")
def test_our_client_sends_numbers_back(bench: Bench) -> None:
    with Client(bench.endpoint) as client:
        flood = client.launch("flood")
        assert all(flood.receive() == bytes(16 << 10) for _ in range(1500))
        assert flood.receive() == bytes(16 << 10)
        counts = bench.rpc.sessions.backlog

        def behind() -> int:
            return max(int(bench.call(counts.behind, peer)) for peer in counts.connections())

        # The client itself reads what the program does not.
        until(lambda: behind() < (4 << 20), 20)


def test_a_connection_that_breaks_while_its_input_is_held_back(bench: Bench) -> None:
    """Of what comes while the server is busy, more than the receive queue holds."""
    proxy = Proxy(bench)
    for _ in range(3):
        with Raw(proxy.endpoint) as raw:
            raw.ask(Hello(PROTOCOL, os.urandom(16), "hasty"))
            for number in range(1, 1000):
                raw.say(Request(number, number, "has", {"hash": "x" * 2000}))
            proxy.cut()
            bench.call(time.sleep, 0.2)
    time.sleep(FAST.dead)
    works(bench)


def test_a_message_over_the_limit_breaks_only_its_connection(bench: Bench) -> None:
    with Raw(bench.endpoint) as raw:
        assert isinstance(raw.ask(Hello(PROTOCOL, bytes(16), "large")), Welcome)
        raw.socket.send(bytes(20 << 20))
        raw.socket.setsockopt(zmq.RCVTIMEO, 500)
        for _ in range(20):  # what was in the broken connection is lost
            with contextlib.suppress(zmq.Again):
                welcome = raw.ask(Hello(PROTOCOL, bytes(16), "large"))
                break
        assert isinstance(welcome, Welcome)
        assert welcome.resumed
    works(bench)


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("way", ["leaves", "gives up"])
def test_who_asked_has_left_while_its_program_was_compiled(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, way: str, detached: bool
) -> None:
    behaviours = bench.behaviours
    asked, compiled = threading.Event(), trio.Event()
    launched: list[Instance] = []

    start = behaviours.start

    async def until_can_start(program: Program) -> None:
        asked.set()
        with trio.CancelScope(shield=True):  # as a thread, which nothing interrupts
            await compiled.wait()

    def started(*args: Any, **kwargs: Any) -> Instance:
        launched.append(start(*args, **kwargs))
        return launched[0]

    monkeypatch.setattr(behaviours, "can_start", lambda program: False)
    monkeypatch.setattr(behaviours, "until_can_start", until_can_start)
    monkeypatch.setattr(behaviours, "start", started)
    with Raw(bench.endpoint) as raw:
        raw.ask(Hello(PROTOCOL, bytes(16), "hasty"))
        raw.say(Request(1, 1, "launch", {"program": "sleep", "detached": detached}))
        assert asked.wait(20)
        if way == "leaves":
            raw.say(Bye("done"))
            until(lambda: not bench.call(lambda: len(bench.rpc.sessions)))
        else:
            assert isinstance(raw.ask(Request(2, 2, "server", {})), Response)
        bench.call(compiled.set)
        until(lambda: launched)
        [instance] = launched
        if detached:
            assert instance.state is InstanceState.RUNNING
        else:
            assert instance.ended is not None
            assert instance.ended.text == "killed: its client has left"
            assert not instance.client.attached


# Keys. 0.0.0.0 counts as reached from other machines, and this one reaches it as 127.0.0.1.


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[Bench, KeyStore]]:
    keys = KeyStore(tmp_path)
    for user in ("ann", "bob", "boss"):
        keys.add(user).write(tmp_path / f"{user}.json")
    with Bench(tmp_path, "tcp://0.0.0.0:*") as bench:
        yield bench, keys


def reached(bench: Bench) -> str:
    return f"tcp://127.0.0.1:{bench.endpoint.rpartition(':')[2]}"


def test_users_with_keys_see_their_own_instances(
    secure: tuple[Bench, KeyStore], tmp_path: Path
) -> None:
    bench, _ = secure
    endpoint = reached(bench)
    with (
        Client(endpoint, tmp_path / "ann.json") as ann,
        Client(endpoint, tmp_path / "bob.json") as bob,
    ):
        assert (ann.user, bob.user) == ("ann", "bob")
        instance = ann.launch("sleep")
        assert [i["id"] for i in ann.instances()] == [instance.id]
        assert bob.instances() == []
        for act in (bob.kill, bob.attach, bob.logs, bob.result):
            with pytest.raises(RpcError, match="not-found"):
                act(instance.id)
        assert bob.programs() == []
        with pytest.raises(RpcError, match="not-found"):
            bob.launch("sleep")
        assert ann.kill(instance.id)


def test_quotas_and_operators(secure: tuple[Bench, KeyStore], tmp_path: Path) -> None:
    endpoint = reached(secure[0])
    with (
        Client(endpoint, tmp_path / "ann.json") as ann,
        Client(endpoint, tmp_path / "bob.json") as bob,
        Client(endpoint, tmp_path / "boss.json") as boss,
    ):
        instance = ann.launch("sleep")
        [mine] = ann.quota()
        kinds = {each["kind"]: (each["has"], each["may"]) for each in mine["kinds"]}
        assert mine["user"] == "ann"
        assert kinds["instances"] == (1, 500)
        assert kinds["sessions"] == (1, MAX_SESSIONS // 2)
        may = (64 << 20) // 100
        with pytest.raises(RpcError, match=r"limit-exceeded: your programs take .*pie-py programs"):
            bob.upload(b"#" * (may + 1), "large")
        bob.upload(b"#" * may, "all-that-may-be")
        programs = {"kind": "bytes of programs", "has": may + 4096, "may": may}
        assert programs in bob.quota()[0]["kinds"]
        for asks in (ann.quota, ann.instances):
            with pytest.raises(RpcError, match=r"permission-denied: .*`admins`"):
                asks(all_users=True)
        users = [each["user"] for each in boss.quota(all_users=True)]
        assert users == ["ann", "bob", "boss", "local"]
        assert boss.instances() == []
        assert [each["id"] for each in boss.instances(all_users=True)] == [instance.id]
        assert boss.kill(instance.id)


def test_adapters_are_the_operators_affair(secure: tuple[Bench, KeyStore], tmp_path: Path) -> None:
    with Client(reached(secure[0]), tmp_path / "ann.json") as ann:
        with pytest.raises(RpcError, match=r"permission-denied: user 'ann' .* `admins`"):
            ann.load_adapter("x", tmp_path, "model")
        for refused in (
            partial(ann.unload_adapter, "x"),
            partial(ann.update_weights, tmp_path / "x"),
            ann.pause_model,
            ann.resume_model,
        ):
            with pytest.raises(RpcError, match="permission-denied"):
                refused("model")


def refusal(endpoint: str, key: Path | ClientKey | None = None) -> str:
    """Why a client is not let in, which it learns long before its patience ends."""
    with pytest.raises(ServerUnreachable) as refused, Client(endpoint, key, patience=60):
        pass
    return str(refused.value)


def test_without_a_good_key_nobody_enters(secure: tuple[Bench, KeyStore], tmp_path: Path) -> None:
    bench, keys = secure
    endpoint = reached(bench)
    text = refusal(endpoint)
    assert f"the server at {endpoint} encrypts and wants a key: pass --key FILE" in text
    assert "`pie-py keys add USER` on the server's machine" in text
    assert "or set PIE_PY_KEY" in text
    keys.remove("bob")
    assert "does not accept this key" in refusal(endpoint, tmp_path / "bob.json")
    stranger = KeyStore(tmp_path / "other").add("ann")
    assert "it belongs to another server" in refusal(endpoint, stranger)
    with Raw(endpoint) as raw:  # no encryption at all
        raw.socket.setsockopt(zmq.RCVTIMEO, 500)
        raw.say(Hello(PROTOCOL, bytes(16), "plain"))
        with pytest.raises(zmq.Again):
            raw.hear()
    with Client(endpoint, tmp_path / "ann.json") as ann:
        assert ann.launch("count", ["0"]).result() == "counted"


def test_the_environment_s_key_is_for_servers_that_want_one(
    secure: tuple[Bench, KeyStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine too, as behind a forwarded port; a server without keys is not given it."""
    monkeypatch.setenv("PIE_PY_KEY", str(tmp_path / "ann.json"))
    with Client(reached(secure[0])) as ann:
        assert ann.user == "ann"
    with Bench(tmp_path / "open") as bench, Client(bench.endpoint) as client:
        assert client.user == "local"


def test_connections_end_when_their_key_is_removed(
    secure: tuple[Bench, KeyStore], tmp_path: Path
) -> None:
    bench, keys = secure
    endpoint = reached(bench)
    with (
        Client(endpoint, tmp_path / "ann.json") as ann,
        Client(endpoint, tmp_path / "bob.json") as bob,
    ):
        instance = ann.launch("sleep")
        keys.remove("ann")
        keys.add("ann").write(tmp_path / "other.json")  # the name alone gives no right
        began = time.monotonic()
        with pytest.raises(ServerUnreachable, match="refuses: this key was removed"):
            instance.result()
        assert time.monotonic() - began < 5
        assert "does not accept this key" in refusal(endpoint, tmp_path / "ann.json")
        with Client(endpoint, tmp_path / "other.json") as other:
            assert [one["id"] for one in other.instances()] == [instance.id]
        assert bob.instances() == []


def test_a_key_whose_time_is_over_ends_its_connections_alone(
    secure: tuple[Bench, KeyStore], tmp_path: Path
) -> None:
    bench, keys = secure
    endpoint, file = reached(bench), tmp_path / "phone.json"
    key = keys.make("ann", "phone")
    key.write(file)
    keys.admit(key, "phone", time.time() + 2)
    with Client(endpoint, file) as phone, Client(endpoint, tmp_path / "ann.json") as ann:
        instance = phone.launch("sleep")
        with pytest.raises(ServerUnreachable, match="refuses: this key was removed"):
            instance.result()
        assert [one["id"] for one in ann.instances()] == [instance.id]
    assert "does not accept this key" in refusal(endpoint, file)
    assert keys.last_use(key.public)


def test_who_claims_the_routing_id_of_a_broken_connection_is_not_its_user(
    secure: tuple[Bench, KeyStore], tmp_path: Path
) -> None:
    bench, _ = secure
    ann, bob = (ClientKey.read(tmp_path / f"{user}.json") for user in ("ann", "bob"))
    taken = b"\0taken"
    with Raw(reached(bench), ann, taken) as victim:
        victim.ask(Hello(PROTOCOL, bytes(16), "a victim"))
        assert isinstance(victim.ask(Request(1, 1, "server", {})), Response)
    while True:  # until ZeroMQ has found that the connection is gone
        with Raw(reached(bench), bob, taken) as thief:
            thief.say(Request(2, 1, "server", {}))
            if thief.socket.poll(200):
                assert thief.hear() == Who()
                welcome = thief.ask(Hello(PROTOCOL, bytes(16), "a thief"))
                assert isinstance(welcome, Welcome)
                assert (welcome.resumed, welcome.user) == (False, "bob")
                break
    with Raw(reached(bench), ann) as victim:
        welcome = victim.ask(Hello(PROTOCOL, bytes(16), "a victim"))
        assert isinstance(welcome, Welcome)
        assert (welcome.resumed, welcome.user) == (True, "ann")


class LateUsers:
    """A store that cannot be asked at first."""

    changes = 0

    def __init__(self, key: ClientKey) -> None:
        self.asked = 0
        self._key = key

    async def find(self, key: str) -> str | None:
        self.asked += 1
        if self.asked < 3:
            raise NotKnownNow("later")
        return self._key.user if key == self._key.public else None


def test_who_is_not_known_yet_connects_again(tmp_path: Path) -> None:
    key = KeyStore(tmp_path).add("ann")
    users = LateUsers(key)
    stranger = replace(KeyStore(tmp_path / "other").add("ann"), server=key.server)
    with Bench(tmp_path, "tcp://0.0.0.0:*", users=users) as bench:
        with Client(reached(bench), key) as ann:
            assert ann.user == "ann"
        assert users.asked >= 3
        assert "does not accept this key" in refusal(reached(bench), stranger)


def test_a_key_for_a_server_that_takes_none(bench: Bench, tmp_path: Path) -> None:
    key = KeyStore(tmp_path / "other").add("ann")
    for _ in range(5):  # either side may be the first to see it
        text = refusal(bench.endpoint, key)
        assert f"the server at {bench.endpoint} does not encrypt, so it takes no key" in text
        assert "leave out --key" in text
    works(bench)


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_what_listens_is_no_server_of_ours(tmp_path: Path, answer: bytes, with_key: bool) -> None:
    key = KeyStore(tmp_path).add("ann") if with_key else None

    class Page(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Page) as page:
        thread = threading.Thread(target=page.serve_forever)
        thread.start()
        try:
            endpoint = f"tcp://127.0.0.1:{page.server_address[1]}"
            with pytest.raises(ServerUnreachable, match=r"no pie_py server|does not answer"):
                Client(endpoint, key, patience=1).__enter__()
        finally:
            page.shutdown()
            thread.join()
    assert refusal(endpoint, key) == f"no server at {endpoint}; `pie-py serve` starts one"


def test_a_listener_that_says_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        for key in (None, KeyStore(tmp_path).add("ann")):
            with pytest.raises(ServerUnreachable, match="does not answer within 1 s"):
                Client(endpoint, key, patience=1).__enter__()


def test_other_machines_are_not_served_without_keys(tmp_path: Path) -> None:
    with pytest.raises(EndpointRefused, match="pie-py keys add USER"):
        Bench(tmp_path, "tcp://0.0.0.0:*").__enter__()


def test_a_file_that_is_no_key_harms_nobody(
    secure: tuple[Bench, KeyStore], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench, keys = secure
    folder = tmp_path / "keys" / "users"
    (folder / "latin.pub").write_bytes(b"\xff" * 40)
    (folder / "folder.pub").mkdir()
    (folder / "gone.pub").symlink_to(tmp_path / "nowhere")
    (folder / "local.pub").write_text("x" * 40)
    (folder / os.fsdecode(b"\xff.pub")).write_text("y" * 40)
    assert sorted(keys.users().values()) == ["ann", "bob", "boss"]
    for name in ("latin", "folder", "gone", "local", "udcff"):
        assert f"{name}.pub' holds no key of a user" in caplog.text
    with Client(reached(bench), tmp_path / "ann.json") as ann:
        assert ann.user == "ann"


def test_a_connection_whose_key_cannot_be_looked_up_is_refused(
    secure: tuple[Bench, KeyStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = secure

    def fail(keys: KeyStore) -> list[Admitted]:
        raise PermissionError("the folder may not be read")

    with monkeypatch.context() as patched:
        patched.setattr(KeyStore, "admitted", fail)
        assert "does not accept this key" in refusal(reached(bench), tmp_path / "ann.json")
    with Client(reached(bench), tmp_path / "ann.json") as ann:
        assert ann.launch("count", ["0"]).result() == "counted"


def test_a_key_is_written_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KeyStore(tmp_path)
    keys.add("ann")
    replace, seen = os.replace, []

    def watched(source: str, target: Path) -> None:
        seen.append((Path(target).name, list(keys.users().values())))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    keys.add("bob")
    assert seen == [("bob.pub", ["ann"])]
    assert sorted(keys.users().values()) == ["ann", "bob"]


def test_keys_are_kept_and_checked(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path)
    key = keys.add("ann")
    assert keys.users() == {key.public: "ann"}
    assert keys.server_pair() == KeyStore(tmp_path).server_pair()
    assert (tmp_path / "keys" / "server.json").stat().st_mode & 0o077 == 0
    for name in ("local", "../x", "", "a" * 65, ".hidden"):
        with pytest.raises(KeyProblem, match="cannot name a user"):
            keys.add(name)
    with pytest.raises(KeyProblem, match="has a key already"):
        keys.add("ann")
    keys.remove("ann")
    assert keys.users() == {}
    with pytest.raises(KeyProblem, match="no user 'ann'"):
        keys.remove("ann")
