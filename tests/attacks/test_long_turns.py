"""No request, however large, keeps the loops that all share for longer than a turn's budget."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx2
import msgspec
import pytest
import websockets
import websockets.sync.client
import zmq
from attacks.largest import bodies
from support.gateways import Gateway
from support.servers import Server

from pie_gateway.operations import OPERATIONS
from pie_gateway.schemas.inferlets import LaunchRequest
from pie_py.wire import javascript, methods, modules
from pie_py.wire.rpc import PROTOCOL, Failure, Hello, Message, Request, Response, decode, encode

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Server, Gateway]]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        settings = {"log": {"format": "json"}}
        with Server(folder, **settings) as server, Gateway(server, folder) as gateway:
            yield server, gateway


def long_turns(both: tuple[Server, Gateway]) -> list[str]:
    """What has been logged of turns over the budget."""
    return [line for each in both for line in each.log.splitlines() if "a long turn" in line]


class Watched:
    """Notes requests that were followed by a turn over the budget."""

    def __init__(self, both: tuple[Server, Gateway]) -> None:
        self._both = both
        self._seen = len(long_turns(both))
        self.found: list[tuple[Any, ...]] = []

    def more(self) -> list[str]:
        """The long turns since it looked last."""
        more = long_turns(self._both)[self._seen :]
        self._seen += len(more)
        return more

    def note(self, *what: Any) -> None:
        if more := self.more():
            self.found.append((*what, more))

    def check(self) -> None:
        assert not self.found, "\n".join(map(str, self.found))


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_no_body_holds_a_loop(both: tuple[Server, Gateway]) -> None:
    watched = Watched(both)
    with both[1].http(limits=httpx2.Limits(max_keepalive_connections=0)) as http:
        for operation in OPERATIONS:
            if operation.body in (None, bytes) or operation.is_form:
                continue
            path = operation.path.replace("{instance}", "none").replace("{program}", "none")
            for field, body in bodies(operation.body):
                content = json.dumps(body, ensure_ascii=False, default=in_base64).encode()
                answer = http.post(path, content=content, headers=JSON)
                assert answer.status_code != 500, (path, field, answer.text[:300])
                watched.note(path, field)
    watched.check()


def test_no_form_holds_a_loop(both: tuple[Server, Gateway]) -> None:
    watched = Watched(both)
    head = b'--a\r\ncontent-disposition: form-data; name="file"; filename="%s"\r\n\r\n'
    forms = {
        "parts": b"\r\n--a" * (31_000_000 // 5),
        "names": head % (b"n" * 31_000_000),
        "almost parts": head % b"x" + b"\r\n--" * 2_000_000 + b"\r\n--a--\r\n",
        "line ends": head % b"x" + b"\r" * 8_000_000 + b"\r\n--a--\r\n",
    }
    with both[1].http() as http:
        for name, body in forms.items():
            form = {"content-type": "multipart/form-data; boundary=a"}
            assert http.post("/v1/files", content=body, headers=form).status_code == 400, name
            watched.note(name)
        for _ in range(3):
            assert http.get("/v1/files", params={"limit": 10_000}).status_code == 200
    watched.check()


def test_no_program_holds_a_loop(both: tuple[Server, Gateway]) -> None:
    watched = Watched(both)
    size = 31_000_000
    programs = {
        "component": b"\0asm" + b"\1" * size,
        "lines": b"x = 1\n" * 500_000,
        "one line": b"x = [" + b"1," * 1_000_000 + b"]\n",
        "modules": modules.MARK + b"\x93" * size,
        "JavaScript": javascript.MARK + b"[" * size,
        "sampler": modules.SAMPLER + b"x\n" * (size // 2),
    }
    with both[1].http() as http:
        for name, data in programs.items():
            answer = http.post("/v1/programs", params={"name": "p"}, content=data, timeout=200)
            assert answer.status_code != 500, (name, answer.text[:300])
            watched.note(name, answer.status_code)
    watched.check()


def test_no_references_hold_a_loop(both: tuple[Server, Gateway]) -> None:
    watched = Watched(both)
    with both[1].http() as http:

        def respond(items: list[Any], **more: Any) -> httpx2.Response:
            asked = {"model": "pie-tiny", "input": items, "max_output_tokens": 1, **more}
            return http.post("/v1/responses", json=asked)

        said = {"type": "message", "id": "e", "role": "user", "content": "e" * 900}
        assert respond([said]).status_code == 200
        for number in range(20):
            other = {"type": "message", "role": "user", "content": f"he said e {number}" * 20}
            assert respond([other]).status_code == 200
        refused = respond([{"type": "item_reference", "id": "e"}] * 60_000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
        assert respond([{"type": "item_reference", "id": "e"}] * 3).status_code == 200
        made = respond([said], metadata={"k": "v" * 8_000_000}).json()["id"]
        for what in ("", "?stream=true", "/input_items"):
            assert http.get(f"/v1/responses/{made}{what}").status_code == 200
    watched.check()


@pytest.mark.nightly
def test_no_long_conversation_holds_a_loop(both: tuple[Server, Gateway]) -> None:
    watched = Watched(both)
    said = [{"type": "message", "role": "user", "content": "e"}]
    with both[1].http() as http:

        def respond(items: list[Any], **more: Any) -> str:
            asked = {"model": "pie-tiny", "input": items, "max_output_tokens": 1, **more}
            answer = http.post("/v1/responses", json=asked)
            assert answer.status_code == 200
            return str(answer.json()["id"])

        long = respond(said)
        for _ in range(5):
            long = respond([{"type": "reasoning"}] * 120_000, previous_response_id=long)
        watched.more()  # of what has gone before
        respond(said, previous_response_id=long)
    watched.note("a short request in one")
    watched.check()


@pytest.mark.nightly
def test_no_frame_holds_a_loop(both: tuple[Server, Gateway]) -> None:
    watched = Watched(both)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(both[0].endpoint)
    numbers = itertools.count(1)

    def ask_for(method: str, params: dict[str, Any], frame: bytes = b"") -> None:
        """Sends a frame, says hello, and waits for the answer to a request."""
        for _ in range(3):  # a busy machine has long turns of its own
            number, answer = next(numbers), None
            hello = encode(Hello(PROTOCOL, bytes(16), "x" * 2_000_000))
            for each in (frame, hello, encode(Request(number, 0, method, params))):
                if each:
                    socket.send(each)
            while not (isinstance(answer, Response | Failure) and answer.number == number):
                assert socket.poll(60_000), (method, frame[:50], both[0].log[-3000:])
                answer = decode(socket.recv())
            if not (more := watched.more()):
                return
        watched.found.append((method, [*params], frame[:50], more))

    try:
        for kind in get_args(Message):
            for _, fields in bodies(kind, long=2_000_000, many=1_000_000):
                frame = msgspec.msgpack.encode([kind.__struct_config__.tag, *fields.values()])
                ask_for("has", {"hash": ""}, frame)
        for method in (*methods.OF_ALL_NODES, *methods.OF_INSTANCES):
            name = methods.name_of(method)
            for _, params in bodies(method, long=2_000_000, many=200_000):
                ask_for(name, params)
        ask_for("has", {"x": [[]] * 2_000_000})
    finally:
        context.destroy(linger=0)
    watched.check()


def ask(url: str, body: object) -> None:
    """Sends the fields of a session, and reads what comes."""
    with websockets.sync.client.connect(url, max_size=None) as socket:
        assert not socket.protocol.extensions, "nothing is unpacked on the loop"
        socket.send(json.dumps(body))  # the longest are refused before their end
        socket.recv(timeout=60)


def test_no_session_holds_a_loop(both: tuple[Server, Gateway]) -> None:
    watched = Watched(both)
    url = both[1].url.replace("http", "ws", 1) + "/v1/inferlets/none/session"
    for field, body in bodies(LaunchRequest):
        with pytest.raises(websockets.ConnectionClosedError):
            ask(url, body)
        watched.note(field)
    watched.check()


COLLECTED = """
import gc
from pie_py.config.memory import bound_collections

bound_collections()
sizes = []
gc.callbacks.append(lambda phase, _: phase == "start" and sizes.append(len(gc.get_objects())))
kept = [([i], {"a": [i]}, i) for i in range(300_000)]
assert gc.get_freeze_count() > 1_000_000
print(max(sizes))
"""


def test_collections_are_short_however_much_is_kept() -> None:
    command = [sys.executable, "-c", COLLECTED]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(found) < 150_000
