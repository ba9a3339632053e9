"""The attacks, by what they have in common: each is many instances of `guests/hostile.py`, or what
an attacker's own client does.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from attacks import over_http
from attacks.place import EVE, MALLORY, Place
from wasmtime import wat2wasm

from pie_py.client.errors import ClientError
from pie_py.client.sync import Client
from pie_py.config.keys import ClientKey
from pie_py.wire.rpc import PROTOCOL, Hello, Request, encode

GUEST = Path(__file__).parent / "guests" / "hostile.py"
HEARD = 6  # messages of an attacker's instances that are read, of each

Act = Callable[[Client, Place, float], list[str]]  # until a time of the clock; what it was told


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        cause: what it exploits; attacks of one cause are mended by one thing.
        name: of the attack, as the table shows it.
        act: attacks for a while.
        short: whether it is one of those that CI runs.
    """

    cause: str
    name: str
    act: Act = field(compare=False)
    short: bool = False


def instances(count: int, *args: str) -> Act:
    """So many instances of the hostile guest, whose first argument says what they do."""

    def act(client: Client, place: Place, end: float) -> list[str]:
        program = client.upload(GUEST, name="hostile")
        given = [program if arg == "PROGRAM" else arg for arg in args]
        launched, told = [], []
        for _ in range(count):
            try:
                launched.append(client.launch(program, given))
            except ClientError as error:
                told.append(str(error))
                break
        time.sleep(max(0.0, end - time.monotonic()))
        for instance in launched:
            with suppress(ClientError, TimeoutError):
                for _ in range(HEARD):
                    told.append(str(instance.receive(0.001)))
        for one in client.instances():
            with suppress(ClientError):
                client.kill(one["id"])
        for instance in launched[:3]:
            try:
                told.append(instance.result(30))
            except (ClientError, TimeoutError) as error:
                told.append(str(error))
        return told

    return act


def by_two(act: Act) -> Act:
    """The same by two users at once, who share what they attack with."""

    def both(client: Client, place: Place, end: float) -> list[str]:
        with place.client(EVE) as other, ThreadPoolExecutor(1) as pool:
            beside = pool.submit(act, other, place, end)
            return act(client, place, end) + beside.result()

    return both


def _repeat(call: Callable[[Client, int], object]) -> Act:
    """A call of the client, again and again."""

    def act(client: Client, place: Place, end: float) -> list[str]:
        told, number = [], 0
        while time.monotonic() < end:
            number += 1
            try:
                call(client, number)
            except ClientError as error:
                told.append(str(error))
        return told

    return act


@contextmanager
def _sockets(place: Place, count: int, user: str = MALLORY) -> Iterator[list[zmq.Socket[bytes]]]:
    """Connections of a user on which nothing has been said."""
    key = ClientKey.read(place.keys[user])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 8192)
    sockets = []
    for _ in range(count):
        socket = context.socket(zmq.DEALER)
        socket.curve_publickey = key.public.encode()
        socket.curve_secretkey = key.secret.encode()
        socket.curve_serverkey = key.server.encode()
        socket.setsockopt(zmq.SNDHWM, 100)
        socket.connect(place.server.endpoint.replace("0.0.0.0", "127.0.0.1"))
        sockets.append(socket)
    try:
        yield sockets
    finally:
        context.destroy(linger=0)


def _sessions(client: Client, place: Place, end: float) -> list[str]:
    with _sockets(place, 1, EVE) as [socket]:  # who has no other one for two minutes then
        for _ in range(4096):
            socket.send(encode(Hello(PROTOCOL, os.urandom(16), "mallory")))
        time.sleep(max(0.0, end - time.monotonic()))
    return []


def _connections(client: Client, place: Place, end: float) -> list[str]:
    with _sockets(place, 300) as sockets:
        for socket in sockets:
            with suppress(zmq.Again):
                socket.send(encode(Hello(PROTOCOL, os.urandom(16), "mallory")), zmq.NOBLOCK)
        time.sleep(max(0.0, end - time.monotonic()))
    return []


def _unread(confirms: bool) -> Act:
    """Asks for long answers on 20 connections, and reads none, though it may say that it does."""

    def act(client: Client, place: Place, end: float) -> list[str]:
        request = {"instance": _logs(client), "after": 0}
        with _sockets(place, 20) as sockets:
            for socket in sockets:
                socket.send(encode(Hello(PROTOCOL, os.urandom(16), "mallory")))
            number = 0
            while time.monotonic() < end:
                number += 1
                told = number if confirms else 0
                for socket in sockets:
                    with suppress(zmq.Again):
                        socket.send(encode(Request(number, told, "logs", request)), zmq.NOBLOCK)
                time.sleep(0.002)
        return []

    return act


def _logs(client: Client) -> str:
    """An instance with long logs."""
    source = b"from inferlet import raw\ndef main(args):\n  for _ in range(900):\n    "
    source += b"raw.log('info', 'x' * 10000)\n  return 'done'\n"
    instance = client.launch(client.upload(source, name="logs"))
    with suppress(ClientError):
        instance.result(60)
    return instance.id


def _garbage(client: Client, place: Place, end: float) -> list[str]:
    chance = random.Random(1)
    with _sockets(place, 4) as sockets:
        while time.monotonic() < end:
            for socket in sockets:
                with suppress(zmq.Again):
                    socket.send(chance.randbytes(chance.randrange(2000)), zmq.NOBLOCK)
            time.sleep(0.0002)
    return []


def _requests(client: Client, place: Place, end: float) -> list[str]:
    """Requests that are cheap to ask and not to answer, as fast as they are taken."""
    with _sockets(place, 4) as sockets:
        for socket in sockets:
            socket.send(encode(Hello(PROTOCOL, os.urandom(16), "mallory")))
        number = 0
        while time.monotonic() < end:
            number += 1
            for socket in sockets:
                for method, given in (
                    ("launch", {"program": "x" * 60}),
                    ("instances", {"all": True}),
                ):
                    with suppress(zmq.Again):
                        socket.send(encode(Request(number, number, method, given)), zmq.NOBLOCK)
                with suppress(zmq.Again):
                    while True:
                        socket.recv(zmq.NOBLOCK)
            time.sleep(0.0005)
    return []


def _nested_finally(client: Client, number: int) -> object:
    lines = ["def f():"]
    for level in range(18):
        lines += [" " * (level + 1) + "try: x", " " * (level + 1) + "finally:"]
    source = "\n".join([*lines, " " * 19 + "x", f"async def main(args): return {number}", ""])
    return client.upload(source.encode(), name="bomb")


def _long_source(client: Client, number: int) -> object:
    source = f"x = {number}\n" + "-" * 200_000 + "1\nasync def main(args): return 1\n"
    return client.upload(source.encode(), name="nested")


def _component(client: Client, number: int) -> object:
    """Another component each time, of 60 000 instructions, whose `run` gives an empty text."""
    extra = "".join(
        f"(func (param i32) (result i32) {'(local.get 0) (i32.const 3) i32.mul drop ' * 100}"
        f" (i32.const {number * 100 + each}))"
        for each in range(150)
    )
    return client.launch(client.upload(_wasm("", extra), name="component")).result()


def _wasm(body: str, extra: str = "") -> bytes:
    """A component whose `run` does something, and gives an empty text."""
    text = f"""(component
      (core module $main
        (memory (export "memory") 1)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
        {extra}
        (func (export "run") (param i32 i32) (result i32) {body} (i32.const 512)))
      (core instance $main (instantiate $main))
      (alias core export $main "memory" (core memory $memory))
      (alias core export $main "realloc" (core func $realloc))
      (func (export "run") (param "args" (list string)) (result (result string (error string)))
        (canon lift (core func $main "run") (memory $memory) (realloc $realloc))))"""
    return bytes(wat2wasm(text))


def _in_memory(count: int, instruction: str) -> Act:
    """So many instances that do one thing with 190 MB in a loop, which nothing interrupts."""
    body = "(drop (memory.grow (i32.const 3000)))"
    body += f"(loop $again ({instruction} (i32.const 190000000)) (br $again))"
    program = _wasm(body)

    def act(client: Client, place: Place, end: float) -> list[str]:
        uploaded = client.upload(program, name="loop")
        launched = [client.launch(uploaded) for _ in range(count)]
        time.sleep(max(0.0, end - time.monotonic()))
        for instance in launched:
            with suppress(ClientError):
                client.kill(instance.id)
        return []

    return act


def _patterns(client: Client, number: int) -> object:
    lines = [f"    case {'[' * 40}x{']' * 40}: return '{each}'" for each in range(1500)]
    source = "\n".join(["async def main(args):", "  match args:", *lines, f"  return {number}", ""])
    return client.launch(client.upload(source.encode(), name="patterns")).result()


def _uploads(client: Client, number: int) -> object:
    source = b"async def main(args): return 1\n#" + os.urandom(500_000).hex().encode()
    return client.upload(source, name=f"p{number}")


def _tokenizing(count: int, text: str, size: int) -> Act:
    return instances(count, "repeat", "tokenize", text, str(size))


TIME, MODEL, NATIVE, COUNTS, PAGES, MESSAGES, DOOR, HTTP, OUTSIDE = (
    "time of the control thread",
    "time of the worker",
    "native code",
    "counts",
    "pages and what else is scarce",
    "messages and disk",
    "the door",
    "the door of HTTP",
    "outside",
)
ATTACKS = [
    Attack(TIME, "40 spin", instances(40, "spin"), short=True),
    Attack(TIME, "40 spin and catch what ends them", instances(40, "spin_and_catch")),
    Attack(TIME, "10 spin in finally", instances(10, "spin_in_finally")),
    Attack(TIME, "10 recurse without end", instances(10, "recurse")),
    Attack(TIME, "10 in one long operation of CPython", instances(10, "bignum")),
    Attack(TIME, "300 yield before their slice ends", instances(300, "yield_early"), short=True),
    Attack(TIME, "300 sleep for 0 ns", instances(300, "wake_often")),
    Attack(TIME, "40 × 4096 futures ready at once", instances(40, "futures_together")),
    Attack(TIME, "fork bomb", instances(4, "fork_bomb", "PROGRAM"), short=True),
    Attack(TIME, "60 measure images of 2 MB of markers", instances(60, "repeat", "image_size")),
    Attack(TIME, "20 take random bytes", instances(20, "repeat", "random_bytes")),
    Attack(TIME, "copies 190 MB", _in_memory(1, "memory.copy (i32.const 1) (i32.const 0)")),
    Attack(TIME, "5 copy 190 MB", _in_memory(5, "memory.copy (i32.const 1) (i32.const 0)")),
    Attack(TIME, "20 copy 190 MB", _in_memory(20, "memory.copy (i32.const 1) (i32.const 0)")),
    Attack(TIME, "20 fill 190 MB", _in_memory(20, "memory.fill (i32.const 1) (i32.const 0)")),
    Attack(TIME, "20 log long lines", instances(20, "repeat", "log")),
    Attack(MODEL, "8 × prompts of 2000 tokens", instances(8, "prompts"), short=True),
    Attack(MODEL, "8 × the same, priority 100", instances(8, "prompts", "2000", "100")),
    Attack(MODEL, "60 × forwards of 16 inputs", instances(60, "steps")),
    Attack(MODEL, "60 × the same, priority 100", instances(60, "steps", "100")),
    Attack(MODEL, "forwards that keep nothing", instances(4, "forwards_that_keep_nothing")),
    Attack(MODEL, "4 × masks of 600 × 600", instances(4, "prompts", "600", "0", "masked")),
    Attack(MODEL, "6 × masks that are refused", instances(6, "masks_that_are_refused")),
    Attack(MODEL, "16 × programs that sort", instances(16, "programs", "sorts"), short=True),
    Attack(MODEL, "16 × programs of NaN", instances(16, "programs", "no_numbers"), short=True),
    Attack(MODEL, "16 × programs of large state", instances(16, "programs", "large_state")),
    Attack(MODEL, "16 × programs, no two alike", instances(16, "programs", "others")),
    Attack(MODEL, "16 × 8 programs of layers", instances(16, "layers")),
    Attack(NATIVE, "7000 chained Lark rules", instances(2, "grammar", "lark", "rules"), short=True),
    Attack(NATIVE, "2500 chained $ref", instances(2, "grammar", "json-schema", "references")),
    Attack(NATIVE, "repeats of repeats", instances(2, "grammar", "regex", "repeats")),
    Attack(NATIVE, "count-allowed of 2400 tokens", instances(4, "count_allowed")),
    Attack(NATIVE, "tokenize 16 M newlines", _tokenizing(4, "\\n", 16 << 20)),
    Attack(NATIVE, "40 × tokenize 120 kB", _tokenizing(40, "ab cd ", 120_000)),
    Attack(NATIVE, "detokenize 500 000 tokens", instances(8, "repeat", "detokenize")),
    Attack(NATIVE, "chat templates of 1 MB", instances(8, "repeat", "chat_template")),
    Attack(NATIVE, "18 nested finally", _repeat(_nested_finally), short=True),
    Attack(NATIVE, "200 000 unary minus", _repeat(_long_source)),
    Attack(NATIVE, "1500 patterns, 40 deep", _repeat(_patterns)),
    Attack(NATIVE, "components, one after the other", _repeat(_component), short=True),
    Attack(COUNTS, "1000 launches", instances(1000, "memory")),
    Attack(COUNTS, "16 fill their memory", instances(16, "memory")),
    Attack(PAGES, "all KV pages, asleep", instances(2, "hoard", "pages", "sleeps")),
    Attack(PAGES, "all KV pages, never waits", instances(2, "hoard", "pages", "waits"), short=True),
    Attack(PAGES, "all KV pages, spins", instances(40, "hoard", "pages", "spins")),
    Attack(PAGES, "all KV pages, as in a tool", instances(2, "hoard", "pages", "receives")),
    Attack(PAGES, "all KV pages, commands queued", instances(8, "hoard", "pages", "queues")),
    Attack(PAGES, "all KV pages, filled, never waits", instances(4, "hoard", "filled", "waits")),
    Attack(PAGES, "all KV pages, filled, asleep", instances(4, "hoard", "filled", "sleeps")),
    Attack(PAGES, "host memory and all pages", instances(4, "hoard", "host", "queues")),
    Attack(PAGES, "exports and all pages", instances(2, "hoard", "exports", "waits")),
    Attack(PAGES, "all queues and pages", instances(40, "hoard", "queues", "sleeps")),
    Attack(PAGES, "all embeds, never waits", instances(4, "hoard", "embeds", "waits")),
    Attack(PAGES, "all samplers, spins", instances(20, "hoard", "samplers", "spins")),
    Attack(PAGES, "pages, by two users", by_two(instances(4, "hoard", "pages", "queues"))),
    Attack(PAGES, "embeds, by two users", by_two(instances(4, "hoard", "embeds", "sleeps"))),
    Attack(PAGES, "samplers, by two users", by_two(instances(20, "hoard", "samplers", "sleeps"))),
    Attack(MESSAGES, "20 send blobs of 1.9 MB", instances(20, "repeat", "send_blobs")),
    Attack(MESSAGES, "40 send short lines", instances(40, "repeat", "send_lines")),
    Attack(MESSAGES, "20 broadcast 100 kB to each other", instances(20, "repeat", "broadcast")),
    Attack(MESSAGES, "10 fill work queues", instances(10, "repeat", "push")),
    Attack(MESSAGES, "10 fill the store", instances(10, "store")),
    Attack(MESSAGES, "uploads of 1 MB", _repeat(_uploads)),
    Attack(DOOR, "4096 sessions on one connection", _sessions, short=True),
    Attack(DOOR, "300 connections", _connections),
    Attack(DOOR, "garbage", _garbage),
    Attack(DOOR, "answers that are not read", _unread(confirms=False)),
    Attack(DOOR, "answers that are confirmed and not read", _unread(confirms=True)),
    Attack(DOOR, "requests as fast as they go", _requests),
    Attack(HTTP, "4200 idle connections", over_http.idle),
    Attack(HTTP, "4200 heads that do not end", over_http.half_heads),
    Attack(HTTP, "heads without an end", over_http.endless_head),
    Attack(HTTP, "pipelined requests", over_http.pipelined, short=True),
    Attack(HTTP, "requests on 400 connections", over_http.requests),
    Attack(HTTP, "wrong keys", over_http.wrong_keys),
    Attack(HTTP, "connects and leaves", over_http.connects),
    Attack(HTTP, "bodies without a key", over_http.bodies),
    Attack(HTTP, "control frames", over_http.pings, short=True),
    Attack(HTTP, "400 live pages", over_http.live),
    Attack(HTTP, "chats of 300 000 messages", over_http.messages),
    Attack(OUTSIDE, "private URLs", instances(10, "http")),
    Attack(OUTSIDE, "launch what there is not", instances(20, "launch_unknown")),
]


def acts(attack: Attack, client: Client, place: Place, seconds: float) -> list[str]:
    """Attacks for some seconds; gives the codes that the attacker was told, each once."""
    told: list[Any] = attack.act(client, place, time.monotonic() + seconds)
    codes: dict[str, None] = {}
    for text in told:
        if text not in ("None", "done"):
            codes[text.split(":")[0][:40].strip()] = None
    return list(codes)
