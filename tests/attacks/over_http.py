"""Attacks on the door of HTTP: by strangers without a key, and by a user who has one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from attacks.place import MALLORY, Place

from pie_py.client.sync import Client
from pie_py.config.keys import ClientKey, api_key

ATTACKER = "127.0.0.66"  # another address of this machine than the bystander's
HOST = b"Host: 127.0.0.1\r\n"
PINGS = b"\x89\x80\0\0\0\0" * 2000


@contextmanager
def _connections(place: Place, count: int) -> Iterator[list[socket.socket]]:
    """So many connections, or as many as the server takes."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            with suppress(OSError):
                opened.append(_connect(place))
        yield opened
    finally:
        for each in opened:
            each.close()


def _connect(place: Place) -> socket.socket:
    made = socket.create_connection(place.http, 5.0, source_address=(ATTACKER, 0))
    made.settimeout(0.02)
    return made


def _key(place: Place) -> bytes:
    key = api_key(ClientKey.read(place.keys[MALLORY]))
    return f"Authorization: Bearer {key}\r\n".encode()


def _again_and_again(place: Place, made: list[socket.socket], data: bytes, end: float) -> None:
    """Sends on all connections as fast as they take it; those that are cut off are made again."""
    while time.monotonic() < end:
        for at, each in enumerate(made):
            try:
                each.send(data)
                each.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError:
                with suppress(OSError):
                    if not _is_open(each):
                        made[at] = _connect(place)
                        each.close()


def _is_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def idle(client: Client, place: Place, end: float) -> list[str]:
    """4 200 connections that say nothing."""
    with _connections(place, 4200):
        time.sleep(max(0.0, end - time.monotonic()))
    return []


def half_heads(client: Client, place: Place, end: float) -> list[str]:
    """4 200 connections that have begun a request."""
    with _connections(place, 4200) as made:
        for each in made:
            with suppress(OSError):
                each.send(b"GET / HTTP/1.1\r\n" + HOST + b"X: ")
        time.sleep(max(0.0, end - time.monotonic()))
    return []


def endless_head(client: Client, place: Place, end: float) -> list[str]:
    """Heads that never end."""
    with _connections(place, 4) as made:
        for each in made:
            with suppress(OSError):
                each.send(b"GET / HTTP/1.1\r\n" + HOST)
        _again_and_again(place, made, (b"X-A: " + b"a" * 65_000 + b"\r\n") * 4, end)
    return []


def pipelined(client: Client, place: Place, end: float) -> list[str]:
    """Requests that do not wait for answers."""
    with _connections(place, 4) as made:
        _again_and_again(place, made, (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n") * 500, end)
    return []


def requests(client: Client, place: Place, end: float) -> list[str]:
    """Requests one by one, on many connections."""
    with _connections(place, 400) as made:
        _again_and_again(place, made, b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n", end)
    return []


def wrong_keys(client: Client, place: Place, end: float) -> list[str]:
    """Keys that are tried out."""
    head = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"Authorization: Bearer pie-%064d\r\n\r\n"
    with _connections(place, 100) as made:
        _again_and_again(place, made, head % time.monotonic_ns(), end)
    return []


def connects(client: Client, place: Place, end: float) -> list[str]:
    """Connects and leaves, as fast as it goes."""
    while time.monotonic() < end:
        with suppress(OSError):
            _connect(place).close()
    return []


def bodies(client: Client, place: Place, end: float) -> list[str]:
    """Bodies without a key, and without an end."""
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999\r\n\r\n"
    with _connections(place, 40) as made:
        for each in made:
            with suppress(OSError):
                each.send(head)
        _again_and_again(place, made, b"a" * (1 << 18), end)
    return []


def pings(client: Client, place: Place, end: float) -> list[str]:
    """WebSockets whose frames are for control."""
    head = _upgrade(b"/v1/inferlets/none/session", place)
    with _connections(place, 40) as made:
        for each in made:
            with suppress(OSError):
                each.send(head)
        time.sleep(0.3)
        _again_and_again(place, made, PINGS, end)
    return []


def _upgrade(path: bytes, place: Place) -> bytes:
    """The request for a WebSocket."""
    return (
        b"GET " + path + b" HTTP/1.1\r\n" + HOST + _key(place) + b"Upgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )


def live(client: Client, place: Place, end: float) -> list[str]:
    """400 live pages."""
    with _connections(place, 400) as made:
        for each in made:
            with suppress(OSError):
                each.send(_upgrade(b"/v1/live", place))
        while time.monotonic() < end:
            time.sleep(0.5)
            for each in made:
                with suppress(OSError):
                    each.recv(1 << 20, socket.MSG_DONTWAIT)
    return []


def messages(client: Client, place: Place, end: float) -> list[str]:
    """Chats of 300 000 messages."""
    chat = {"model": "pie-tiny", "messages": [{"role": "user", "content": "a"}] * 300_000}
    body = json.dumps(chat).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + _key(place)
    head += b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    told: dict[str, None] = {}
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(place.http, 30.0) as made:
            made.sendall(head + body)
            told[made.recv(1 << 16).split(b"\r\n")[0].decode()] = None
    return [*told]
