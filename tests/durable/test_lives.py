"""Durable instances over a restart: requests under way, ends, damage; and branches of them."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from support.checkpoints import make_llama
from support.durable import journal_of
from support.servers import NO_MODEL, Server

from pie_control.journal.file import framed
from pie_py.client import InferletFailed, RpcError

ASK = """\
from inferlet import PieError, http, session

async def main(url: str, method: str = "GET") -> str:
    try:
        answer = await http.request(method, url)
        return f"{answer.status} {await answer.text()}"
    except PieError as error:
        return str(error)
"""

SAY = """\
from inferlet import runtime, session

async def main(word: str = "a") -> str:
    number = runtime.random_bytes(8).hex()
    session.send(f"{number} ")
    session.send(f"{word} ")
    line = await session.receive()
    session.send(f"{line} ")
    if line == "fail":
        raise ValueError("as told")
    return f"{number} {word} {line}"
"""


class Web:
    """A web server whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []  # method, Idempotency-Key
        self.arrived = threading.Semaphore(0)
        self.go = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append((self.command, self.headers["Idempotency-Key"]))
                web.arrived.release()
                web.go.wait()
                self.send_response(200)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"done")

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def start(folder: Path, **settings: Any) -> Server:
    http = {"allow": ["127.0.0.1:*"], "allow_networks": ["127.0.0.0/8"]}
    return Server(folder, http=http, **NO_MODEL, **settings).__enter__()


def all_of(instance: Iterable[str | bytes]) -> str:
    return "".join(map(str, instance))


def end_of(client: Any, instance: str) -> str:
    try:
        found: str = client.attach(instance).result()
    except InferletFailed as error:
        return str(error)
    return found


def test_what_is_under_way_at_a_crash(short_folder: Path) -> None:
    web = Web()
    server = start(short_folder)
    with server.client() as client:
        ask = client.upload(ASK.encode(), "ask")
        say = client.upload(SAY.encode(), "say")
        got = client.launch(ask, ["--url", web.url], durable=True)
        sent = client.launch(ask, ["--url", web.url, "--method", "POST"], durable=True)
        web.arrived.acquire()
        web.arrived.acquire()
        ended, damaged = (client.launch(say, durable=True, detached=True).id for _ in "ab")
        client.send(ended, "bye")
        result = client.result(ended)
        number = str(client.attach(damaged).receive())
        client.send(damaged, "x" * 1000)
        server.kill()
        path = journal_of(short_folder / "data", damaged)
        assert path.stat().st_mode & 0o777 == 0o600
        data = bytearray(path.read_bytes())
        # Not in the last entry, which would count as one that was not written whole.
        data[data.index(bytes.fromhex(number))] ^= 1
        path.write_bytes(data)
        web.go.set()
        server = start(short_folder)
        assert got.result() == "200 done"
        assert "interrupted" in sent.result()
        reader = client.attach(ended)
        assert all_of(reader) + reader.result() == f"{result[:16]} a bye {result}"
        assert "its journal is damaged" in end_of(client, damaged)
    server.__exit__(None, None, None)
    assert [method for method, _ in sorted(web.asked)] == ["GET", "GET", "POST"]
    assert sorted(web.asked)[2][1] == f"{sent.id}-1"


def test_what_may_be_sent_again_is_sent_under_the_same_key(short_folder: Path) -> None:
    web = Web()
    server = start(short_folder, durable={"retry": True})
    with server.client() as client:
        ask = client.upload(ASK.encode(), "ask")
        sent = client.launch(ask, ["--url", web.url, "--method", "POST"], durable=True)
        web.arrived.acquire()
        server.kill()
        web.go.set()
        server = start(short_folder, durable={"retry": True})
        assert sent.result() == "200 done"
    server.__exit__(None, None, None)
    assert web.asked == [("POST", f"{sent.id}-1")] * 2


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    durable = {"programs": ["always"], "bytes": 20_000}
    with Server(folder, durable=durable, **NO_MODEL) as running:
        yield running


def test_branches_share_what_was(server: Server) -> None:
    with server.client() as client:
        first = client.launch(client.upload(SAY.encode(), "say"), durable=True)
        first.send("one")
        whole = all_of(first)
        number, result = whole[:16], first.result()
        assert result == f"{number} a one"
        calls = client.calls(first.id)
        names = [call["call"] for call in calls]
        at = names.index("session.receive")
        assert names[at - 2 : at] == ["session.send", "session.send"]
        other = client.branch(first.id, at)
        other.send("two")
        assert all_of(other) == "two "
        assert other.result() == f"{number} a two"
        changed = SAY.replace('f"{line} "', 'f"<{line}> "').encode()
        third = client.branch(other.id, at + 1, program=client.upload(changed, "say"))
        assert all_of(third) == "<two> "
        assert third.result() == f"{number} a two"
        fourth = first.branch(at)
        again = client.attach(fourth.id)
        fourth.send("two")
        assert all_of(fourth) == "two "
        assert again.result() == fourth.result() == f"{number} a two"
        with pytest.raises(InferletFailed, match=r"departs from its journal at call"):
            client.branch(first.id, at + 1, args=["--word", "b"]).result()
        with pytest.raises(RpcError, match="not-found"):
            client.branch("none", 1)
        with pytest.raises(RpcError, match=f"has {len(calls)} calls, and none has the number 999"):
            client.branch(first.id, 999)


def test_one_that_was_killed_goes_on(server: Server) -> None:
    with server.client() as client:
        first = client.launch(client.upload(SAY.encode(), "always"))  # as the settings say
        number = str(first.receive())
        first.receive()
        client.kill(first.id)
        with pytest.raises(InferletFailed, match="killed"):
            first.result()
        client.resume(first.id)
        with pytest.raises(RpcError, match="already-exists"):
            client.resume(first.id)
        again = client.attach(first.id)
        again.send("more")
        assert again.result() == f"{number}a more"


def test_one_that_cannot_be_resumed_is_still_told_of(server: Server) -> None:
    with server.client() as client:
        program = client.upload(SAY.encode() + b"# gone", "gone")
        gone = client.launch(program, durable=True, detached=True).id
        client.kill(gone)
        client.remove_program(program)
        with pytest.raises(RpcError, match="not-found: no program"):
            client.resume(gone)
        assert [one["state"] for one in client.instances(ended=True) if one["id"] == gone]
        for asks in (client.resume, client.calls):
            with pytest.raises(RpcError, match="not-found"):
                asks("no\0name")


def test_journals_have_bounds(server: Server, folder: Path) -> None:
    with server.client() as client:
        program = client.upload(SAY.encode(), "say")
        ended = client.launch(program, durable=True)
        ended.send("x" * 30_000)
        assert "x" in ended.result()
        assert (folder / "data" / "journals").stat().st_mode & 0o777 == 0o700
        waits = client.launch(program, ["--word", "y" * 30_000], durable=True)
        assert not journal_of(folder / "data", ended.id).exists()  # it has made room
        with pytest.raises(RpcError, match="limit-exceeded: your journals have"):
            client.launch(program, durable=True)
        client.kill(waits.id)
        with pytest.raises(InferletFailed, match="killed"):
            waits.result()
        client.kill(client.launch(program, durable=True).id)


def test_what_cannot_run_or_be_written_is_refused_and_has_no_journal(short_folder: Path) -> None:
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        tensors = client.upload(save({"a": np.zeros(1, np.float32)}), "it")
        with pytest.raises(RpcError, match="program-rejected: it has tensors"):
            client.launch(tensors, durable=True)
        assert client.instances(ended=True) == []
        program = client.upload(SAY.encode(), "say")
        (short_folder / "data" / "journals").write_text("in the way")
        with pytest.raises(RpcError, match="out-of-resources: no journal can be written"):
            client.launch(program, durable=True)
        plain = client.launch(program)
        plain.send("on")
        assert plain.result()


@pytest.mark.nightly
def test_another_model_is_refused_by_name(tmp_path: Path, short_folder: Path) -> None:
    source = b"""
from inferlet import Context, Model, session
async def main():
    context = Context(Model.load())
    session.send("begun")
    return await session.receive()
"""
    checkpoint = make_llama(tmp_path / "model")
    models = [{"source": str(checkpoint), "name": "test"}]
    with Server(short_folder, models=models) as server, server.client() as client:
        instance = client.launch(client.upload(source, "it"), durable=True, detached=True)
        while not client.calls(instance.id):
            pass
    weights = next(checkpoint.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    with Server(short_folder, models=models) as server, server.client() as client:
        assert "the files of model 'test' are others" in end_of(client, instance.id)


SAMPLERS = b"""
from inferlet import PieError, raw

async def main() -> str:
    [model] = raw.available_models()
    queue, said = raw.create_queue(model), []
    wrong = "[" * 100_000, '{"x":' * 50_000, '{"top_k": 2, }', "{", "[]"
    for text in (*wrong, "", " { } ", '{"seed": 3}'):
        try:
            said.append(str(raw.create_sampler(queue, text)))
        except PieError as error:
            said.append(error.code)
    return " ".join(said)
"""


def test_samplers_of_durable_programs_are_those_of_others(short_folder: Path) -> None:
    with Server(short_folder) as server, server.client() as client:
        program = client.upload(SAMPLERS, "samplers")
        for durable in (False, True):
            result = client.launch(program, durable=durable).result()
            assert result == "invalid-argument " * 5 + "1 2 3"


NO_ENTRIES: list[Any] = [
    ["call", "session.receive", 9, True, "never sent"],
    ["sent", b"id"],
    ["due", 7],
    "no array",
    ["checkpoint", b"", 0, 0, {"topics": 5}],
]


def test_journals_that_make_no_sense_stop_no_others(short_folder: Path) -> None:
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        program = client.upload(SAY.encode(), "say")
        other, *odd = (
            client.launch(program, durable=True, detached=True).id for _ in ["", *NO_ENTRIES]
        )
        for one in odd:
            client.send(one, "x" * 1000)
        server.kill()
    for one, last in zip(odd, NO_ENTRIES, strict=True):
        with journal_of(short_folder / "data", one).open("ab") as file:
            file.write(framed(last))
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        client.send(other, "on")
        assert client.result(other).endswith("a on")
        for one in odd:
            with pytest.raises(InferletFailed, match="internal: "):
                client.result(one)
