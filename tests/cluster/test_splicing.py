"""Pairs of sockets whose bytes one thread carries: real sockets, of which some do not read."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_cluster.gateway.splicing import CHUNK_BYTES, Splicing

WAIT_SECONDS = 20.0
LITTLE = 16 << 10  # of a socket's buffer


@pytest.fixture(scope="module")
def splicing() -> Iterator[Splicing]:
    carries = Splicing()
    thread = threading.Thread(target=carries.run)
    thread.start()
    yield carries
    carries.stop()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def connection() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection with little room."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
        near.connect(listener.getsockname())
        far = listener.accept()[0]
    for end in (near, far):
        end.settimeout(WAIT_SECONDS)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LITTLE)
    return near, far


class Spliced:
    """Two connections that are one: a client's end and a node's."""

    def __init__(self, splicing: Splicing) -> None:
        self.client, one = connection()
        self.node, other = connection()
        self.ends: Queue[None] = Queue()
        for end in (one, other):
            end.setblocking(False)
        splicing.add(one, other, lambda: self.ends.put(None))

    def close(self) -> None:
        self.client.close()
        self.node.close()
        self.ends.get(timeout=WAIT_SECONDS)
        assert self.ends.empty()


@pytest.fixture
def spliced(splicing: Splicing) -> Iterator[Spliced]:
    made = Spliced(splicing)
    yield made
    made.close()


def digest_of(end: socket.socket, count: int) -> str:
    """Of so many bytes that come."""
    found = hashlib.sha256()
    while count:
        part = end.recv(min(count, 1 << 20))
        assert part, "it has ended too soon"
        found.update(part)
        count -= len(part)
    return found.hexdigest()


def room(end: socket.socket) -> int:
    """How many bytes can be sent to who does not read."""
    end.settimeout(1.0)
    sent = 0
    try:
        while True:
            sent += end.send(bytes(64 << 10))
    except TimeoutError:
        end.settimeout(WAIT_SECONDS)
        return sent


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=64 << 10)), max_size=30),
    st.integers(1, 300_000),
)
def test_what_comes_by_one_socket_goes_out_by_the_other(
    splicing: Splicing, parts: list[tuple[bool, bytes]], read: int
) -> None:
    """In order and whole, both ways at once, however it is cut."""
    pair = Spliced(splicing)
    said = {up: b"".join(part for to, part in parts if to is up) for up in (True, False)}
    heard: dict[bool, bytes] = {}

    def say(end: socket.socket, up: bool) -> None:
        for to, part in parts:
            if to is up:
                end.sendall(part)

    def hear(end: socket.socket, up: bool) -> None:
        found = bytearray()
        while len(found) < len(said[up]):
            found += end.recv(read)
        heard[up] = bytes(found)

    threads = [
        threading.Thread(target=act, args=args)
        for act, args in (
            (say, (pair.client, True)),
            (hear, (pair.node, True)),
            (say, (pair.node, False)),
            (hear, (pair.client, False)),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    pair.close()
    assert heard == said


def test_who_does_not_read_holds_up_its_sender_alone(splicing: Splicing, spliced: Spliced) -> None:
    other = Spliced(splicing)
    sent = room(spliced.node)
    # The buffers of four sockets, of which each may take several times its size, and a chunk.
    assert sent < CHUNK_BYTES + (1 << 20)
    other.client.sendall(b"others go on")
    assert other.node.recv(100) == b"others go on"
    spliced.client.sendall(b"and so does the other way")
    assert spliced.node.recv(100) == b"and so does the other way"
    assert digest_of(spliced.client, sent) == hashlib.sha256(bytes(sent)).hexdigest()
    spliced.node.sendall(b"on")
    assert spliced.client.recv(100) == b"on"
    other.close()


def test_what_was_said_before_the_end_comes_before_the_end(splicing: Splicing) -> None:
    """Also to who reads it only later."""
    for late in (False, True):
        pair = Spliced(splicing)
        sent = room(pair.node) if late else pair.node.send(b"last words")
        pair.node.close()
        assert digest_of(pair.client, sent)
        assert pair.client.recv(1) == b""
        pair.close()


def test_a_socket_that_breaks_ends_the_other(spliced: Spliced) -> None:
    spliced.node.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    spliced.node.close()  # at once, which the other is told by a reset
    assert spliced.client.recv(1) == b""


def test_a_reset_reaches_who_is_held_up(splicing: Splicing) -> None:
    """Nothing is read from a sender that is held up, and yet its end is seen."""
    pair = Spliced(splicing)
    room(pair.node)
    pair.node.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    pair.node.close()
    while pair.client.recv(1 << 20):
        pass
    pair.close()


def test_who_takes_nothing_for_too_long_is_gone(splicing: Splicing) -> None:
    """The kernel sees to it, and is told for how long."""
    client, one = connection()
    node, other = connection()
    ends: Queue[None] = Queue()
    for end in (one, other):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
    splicing.add(one, other, lambda: ends.put(None))
    with pytest.raises(ConnectionError):
        node.sendall(bytes(8 << 20))
    ends.get(timeout=WAIT_SECONDS)
    for end in (client, node):
        end.close()


def test_no_pair_that_is_added_is_overlooked(splicing: Splicing) -> None:
    """However many threads add some while others are taken."""

    def add() -> None:
        for _ in range(100):
            pair = Spliced(splicing)
            pair.client.sendall(b"here")
            assert pair.node.recv(10) == b"here"
            pair.close()

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(add) for _ in range(4)]:
            each.result()


def test_stopped_it_closes_all() -> None:
    carries = Splicing()
    thread = threading.Thread(target=carries.run)
    thread.start()
    pairs = [Spliced(carries) for _ in range(2)]
    for pair in pairs:
        pair.client.sendall(b"here")
        assert pair.node.recv(10) == b"here"
    carries.stop()
    thread.join(WAIT_SECONDS)
    for pair in pairs:
        assert pair.client.recv(1) == b""
        assert pair.node.recv(1) == b""
        assert pair.ends.empty()
        pair.client.close()
        pair.node.close()
