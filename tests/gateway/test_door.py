"""The share of strangers and users in the door of HTTP."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.gateways import Gateway
from support.servers import Server
from uvicorn import Config
from uvicorn.server import ServerState

from pie_gateway.http.connections import WebSocketConnection
from pie_gateway.http.door import HEAD_SECONDS, REQUEST_SECONDS, STRANGER, Door, party_name
from pie_py.config.keys import KeyStore, api_key

HOST = b"Host: 127.0.0.1\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
UPGRADE = (
    b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Clock:
    """A clock that is set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Peer:
    """A connection that notes what the door does to it."""

    def __init__(self) -> None:
        self.dropped = False
        self.went_on = 0

    def drop(self) -> None:
        self.dropped = True

    def go_on(self) -> None:
        self.went_on += 1


def test_of_the_address_with_most_connections_the_oldest_makes_way() -> None:
    door = Door(40, Clock())
    quiet, crowd = Peer(), [Peer() for _ in range(30)]
    door.enter(quiet, "10.0.0.1")
    for peer in crowd:
        door.enter(peer, "10.0.0.2")
    assert [peer.dropped for peer in crowd] == [True] * 21 + [False] * 9
    assert not quiet.dropped
    small = Door(3, Clock())
    for peer in (one := Peer(), other := Peer()):
        small.enter(peer, "10.0.0.1")
    assert (one.dropped, other.dropped) == (True, False), "one stranger, however few there may be"


def test_strangers_take_nothing_from_users_and_one_user_not_all() -> None:
    door = Door(40, Clock())
    peers = [Peer() for _ in range(25)]
    admitted = []
    for peer in peers:
        door.enter(peer, "10.0.0.1")
        admitted.append(door.admit(peer, "ann", alone=False))
    assert admitted == [True] * 20 + [False] * 5
    for _ in range(60):
        door.enter(Peer(), "10.0.0.2")
    assert not any(peer.dropped for peer in peers[:20])
    other = Peer()
    door.enter(other, "10.0.0.1")
    assert door.admit(other, "bob", alone=False)
    assert door.admit(other, "bob", alone=False), "again"


def test_a_head_has_its_time() -> None:
    clock = Clock()
    door = Door(40, clock)
    late, answered = Peer(), Peer()
    for peer in (late, answered):
        door.enter(peer, "10.0.0.1")
    door.has_head(answered)
    clock.seconds += HEAD_SECONDS
    door.tick()
    assert late.dropped
    assert not answered.dropped
    door.waits(answered)
    clock.seconds += HEAD_SECONDS
    door.tick()
    assert answered.dropped


def test_who_rests_and_is_admitted_goes_on_as_the_user() -> None:
    clock = Clock()
    door = Door(40, clock)
    peer = Peer()
    door.enter(peer, "10.0.0.1")
    door.spend(peer, 5.0)
    door.rest(peer)
    assert not door.may_read(peer)
    assert door.admit(peer, "ann", alone=False)
    door.tick()
    assert peer.went_on == 1


@settings(max_examples=50)
@given(
    spent=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 0.02)), max_size=200),
    users=st.sets(st.integers(0, 4)),
)
def test_nobody_has_more_than_their_time_and_all_go_on(
    spent: list[tuple[int, float]], users: set[int]
) -> None:
    clock = Clock()
    door = Door(40, clock)
    peers = [Peer() for _ in range(5)]
    for number, peer in enumerate(peers):
        door.enter(peer, f"10.0.0.{number}")
        door.has_head(peer)
        if number in users:
            door.admit(peer, f"user{number}", alone=False)
    had, rested = [0.0] * 5, set()
    for number, seconds in spent:
        clock.seconds += 0.001
        if door.may_read(peers[number]):
            had[number] += seconds
            door.spend(peers[number], seconds)
        else:
            rested.add(number)
            door.rest(peers[number])
    rate, most = STRANGER
    for number in {*range(5)} - users:
        assert had[number] <= most + rate * clock.seconds + 0.02
    for _ in range(10):  # the longest debt is soon paid
        clock.seconds += 1.0
        door.tick()
    assert all(peers[number].went_on for number in rested)
    assert all(door.takes(f"10.0.0.{number}") for number in range(5))


def test_to_open_a_websocket_takes_the_time_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    door, spent = Door(40, Clock()), []
    monkeypatch.setattr(door, "spend", lambda peer, seconds: spent.append(seconds))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def upgraded() -> bytes:
        given = {"config": Config(app), "server_state": ServerState(), "app_state": {}}
        make: Any = partial(WebSocketConnection, door, **given)
        async with await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(UPGRADE)
            answer = await reader.readline()
            writer.close()
            return answer

    assert b" 101 " in asyncio.run(upgraded())
    assert REQUEST_SECONDS in spent


def test_addresses_of_one_customer_are_one() -> None:
    assert party_name("2001:db8:1:2::7") == party_name("2001:db8:1:2:ffff::1")
    assert party_name("2001:db8:1:2::7") != party_name("2001:db8:1:3::7")
    assert party_name("::ffff:10.0.0.1") == party_name("10.0.0.1") == "10.0.0.1"
    assert party_name("fe80::1%eth0") == party_name("fe80::2")


@pytest.fixture(scope="module")
def keyed(server: Server) -> Iterator[tuple[Gateway, str]]:
    """A gateway of few connections that wants keys, and a key."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        key = api_key(KeyStore(Path(name) / "data").add("ann"))
        with Gateway(server, Path(name), http="0.0.0.0:0", connections=64) as gateway:
            yield gateway, key


def _ends(connection: socket.socket) -> bytes:
    """All that comes until the server ends it."""
    data = b""
    try:
        while more := connection.recv(1 << 16):
            data += more
    except ConnectionError:
        pass
    return data


def _is_served(gateway: Gateway, key: str) -> bool:
    with gateway.http(headers={"x-api-key": key}) as http:
        return http.get("/v1/models").status_code == 200


def test_strangers_who_say_nothing_shut_nobody_out(keyed: tuple[Gateway, str]) -> None:
    gateway, key = keyed
    with ExitStack() as stack:
        for number in range(100):
            made = stack.enter_context(gateway.connect())
            made.sendall(b"GET / HTTP/1.1\r\nX: " if number % 2 else b"")
        assert _is_served(gateway, key)


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 70_000,
        b"GET /" + b"a" * 70_000,
        b"POST /health HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"
        + b"X: 1\r\n" * 20_000,
        HEALTH * 3000,
    ],
    ids=["header", "path", "trailers", "pipelined"],
)  # fmt: skip
def test_what_comes_before_an_answer_is_bounded(keyed: tuple[Gateway, str], endless: bytes) -> None:
    gateway, key = keyed
    with gateway.connect() as made:
        with suppress(ConnectionError):  # it was cut off before all was sent
            made.sendall(endless)
        answers = _ends(made).count(b"HTTP/1.1 200")
    assert answers <= 400
    assert _is_served(gateway, key)


def test_a_few_requests_in_a_row_are_answered_in_order(keyed: tuple[Gateway, str]) -> None:
    gateway, _ = keyed
    with gateway.connect() as made:
        last = b"GET /version HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
        made.sendall(HEALTH * 9 + last)
        answers = _ends(made).split(b"HTTP/1.1 200 OK")[1:]
    assert [b'"ok"' in answer for answer in answers] == [True] * 9 + [False]


def test_bodies_of_too_many_parts_are_refused_before_they_are_parsed(
    keyed: tuple[Gateway, str],
) -> None:
    gateway, key = keyed
    with gateway.http(headers={"x-api-key": key}) as http:
        for body in (b"[" + b'"",' * 300_000 + b"0]", b'{"prompt":[' + b"1," * 1_200_000 + b"1]}"):
            answer = http.post("/v1/completions", content=body)
            assert answer.status_code == 413
            assert "send less" in answer.json()["error"]["message"]
