"""What is on disk survives damage, a full disk, and others who write it at the same time."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import random
import resource
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from support.rust_components import rust_component
from support.servers import NO_MODEL, Server, until

from pie_control.confined.pool import ConfinedPool
from pie_control.data_folder import DataFolderUnusable, open_data_folder
from pie_control.durable.shelf import Shelf
from pie_control.errors import ApiError, ProgramRejected
from pie_control.programs import store as programs
from pie_control.programs.components import Components
from pie_control.programs.index import IndexUnusable
from pie_control.programs.store import ProgramStore
from pie_control.rpc.program_requests import MAX_UPLOADS, USER_UPLOADS, ProgramRequests
from pie_control.rpc.session import Session
from pie_control.shares import Shares
from pie_control.wasm.engine import Engine, EngineConfig
from pie_py.client.errors import InferletFailed
from pie_py.config.keys import KeyStore
from pie_py.config.limits import Quota, Quotas
from pie_py.config.server import ServerConfig
from pie_py.config.services import ConfinedConfig
from pie_py.wire.methods import Upload, UploadChunk

SOURCE = b"async def main(args): return 'x'\n"


@pytest.fixture
def store(tmp_path: Path) -> ProgramStore:
    return ProgramStore(tmp_path / "programs", 1 << 20, time.time_ns)


async def not_called(program: Any) -> None:
    raise AssertionError("no component is sent")


def uploads_of(
    store: ProgramStore, most: int = 1 << 30, prepare: Any = not_called
) -> ProgramRequests:
    """Every user may have so many bytes of programs."""
    shares, config = Shares(Quotas(Quota(share=1.0), {})), ServerConfig(program_bytes=most)
    return ProgramRequests(config, shares, store, prepare, ConfinedPool(ConfinedConfig()))


def test_a_damaged_source_is_told_and_mended_by_another_upload(store: ProgramStore) -> None:
    program = store.put(SOURCE, "it", "python", "ann")
    Path(program.path).write_bytes(b"y" * len(SOURCE))
    with pytest.raises(ApiError, match=r"not-found: .*is damaged on the server; upload it again"):
        store.source(program)
    assert not store.has(program.hash)
    assert store.name_again(program.hash, "it", "ann") is None
    again = store.put(SOURCE, "it", "python", "ann")
    assert store.source(again)[1] == SOURCE.decode()


def test_a_file_of_tensors_is_read_once(
    store: ProgramStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sampler names its tensor again, and may name several of one file."""
    header = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [at, at + 8]}
        for name, at in (("a", 0), ("b", 8))
    }
    text = json.dumps({"__metadata__": {"made": "here"}, **header}).encode()
    numbers = np.arange(4, dtype=np.float32)
    data = len(text).to_bytes(8, "little") + text + numbers.tobytes()
    program = store.put(data, "probe", "tensors", "ann")
    reads: list[str] = []
    read = programs.read_blob

    def noted(path: str, digest: str) -> bytes:
        reads.append(path)
        return read(path, digest)

    monkeypatch.setattr(programs, "read_blob", noted)
    for _ in range(2):
        found = [programs.tensor_of(program, name).tolist() for name in ("a", "b")]
        assert found == [[0, 1], [2, 3]]
    for wrong in ("c", "__metadata__"):
        with pytest.raises(ApiError, match=f"probe has no tensor '{wrong}', but a, b"):
            programs.tensor_of(program, wrong)
    assert reads == [program.path]


def test_a_blob_that_was_cut_off_is_not_there(store: ProgramStore) -> None:
    program = store.put(SOURCE, "it", "python", "ann")
    Path(program.path).write_bytes(SOURCE[:-1])
    assert store.name_again(program.hash, "it", "ann") is None


async def test_a_damaged_component_is_told(store: ProgramStore, tmp_path: Path) -> None:
    engine = Engine(EngineConfig(max_instances=1, cache_folder=tmp_path / "compiled"))
    components = Components(engine, tmp_path, lambda runtime: None, ConfinedPool(ConfinedConfig()))
    program = store.put(b"\0asm\x0d\0\1\0 and more", "it", "component", "ann")
    Path(program.path).write_bytes(b"\0asm\x0d\0\1\0 and MORE")

    with pytest.raises(ProgramRejected, match="is damaged on the server; upload it again"):
        await components.load(program)
    assert not store.has(program.hash)


def test_a_data_folder_of_another_version(tmp_path: Path) -> None:
    folder, version = tmp_path / "data", tmp_path / "data/format"
    for text in (None, "", "1\n"):  # a new folder, an older one, one of this version
        if text is not None:
            version.write_text(text)
        open_data_folder(folder)
        assert version.read_text() == "1\n"
    for text, said in (("2\n", "has format 2; this pie_py knows 1"), ("x", "no version")):
        version.write_text(text)
        with pytest.raises(DataFolderUnusable, match=said):
            open_data_folder(folder)
        assert version.read_text() == text
    assert [path.name for path in folder.iterdir()] == ["format"]


def test_a_server_does_not_start_on_the_data_of_a_newer_one(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("2\n")
    server = Server(tmp_path, data_folder=str(tmp_path))
    assert server.process.wait(20) == 1
    assert "has format 2; this pie_py knows 1: use a newer one" in (server.error or "")
    assert [path.name for path in tmp_path.iterdir() if path.name != "stderr"] == ["format"]


def test_queues_that_cannot_be_read_are_named(short_folder: Path) -> None:
    (short_folder / "data/journals/queues").mkdir(parents=True)
    server = Server(short_folder, **NO_MODEL)
    assert server.process.wait(20) == 1
    assert "journals/queues cannot be read: Is a directory; let the server" in (server.error or "")


def test_the_index_of_a_newer_version_is_refused_and_left_as_it_is(
    store: ProgramStore, tmp_path: Path
) -> None:
    store.put(SOURCE, "it", "python", "ann")
    path = tmp_path / "programs" / "index.sqlite3"
    with sqlite3.connect(path) as sql:
        sql.execute("PRAGMA user_version = 2")
    with pytest.raises(IndexUnusable, match=r"has format 2; this pie_py knows 1: use a newer one"):
        ProgramStore(tmp_path / "programs", 1 << 20, time.time_ns)
    with sqlite3.connect(path) as sql:
        sql.execute("PRAGMA user_version = 1")
    again = ProgramStore(tmp_path / "programs", 1 << 20, time.time_ns)
    assert [program.name for program in again.list()] == ["it"]


def test_an_index_cannot_name_files_elsewhere(store: ProgramStore, tmp_path: Path) -> None:
    store.put(SOURCE, "it", "python", "ann")
    with sqlite3.connect(tmp_path / "programs" / "index.sqlite3") as sql:
        sql.execute("UPDATE programs SET hash = '../../../../etc/passwd'")
    assert store.list() == []
    assert ProgramStore(tmp_path / "programs", 1 << 20, time.time_ns).list() == []


def _upload_and_remove(folder: Path, told: Connection, own: int) -> None:
    """Uploads programs and removes some; tells each before and after it is done."""
    store = ProgramStore(folder, 1 << 20, time.time_ns)
    for number in itertools.count():
        name = f"p{own}-{number}"
        told.send(("begins", name))
        program = store.put(SOURCE + name.encode(), name, "python", "ann")
        told.send(("is", name))
        if number % 3 == 2:
            told.send(("begins", name))
            store.remove([program])
            told.send(("gone", name))


def test_what_was_acknowledged_is_there_after_kills_at_any_moment(tmp_path: Path) -> None:
    """Two servers on one folder; one of them is killed at a random moment, eight times."""
    # Not "fork": a lock that a thread of this process holds then would stay locked in the child.
    context, chance = multiprocessing.get_context("forkserver"), random.Random(7)
    # With what this module imports, which each child would else import for itself.
    context.set_forkserver_preload(
        [
            "pytest",
            "pie_control.programs.components",
            "pie_control.rpc.program_requests",
            "pie_py.client",
        ]
    )
    known: dict[str, str] = {}

    def writer(own: int) -> tuple[BaseProcess, Connection]:
        told, tell = context.Pipe(duplex=False)
        process = context.Process(
            target=_upload_and_remove, args=(tmp_path, tell, own), daemon=True
        )
        process.start()
        tell.close()
        assert told.poll(60), "it writes"
        return process, told

    def end(process: BaseProcess, told: Connection) -> None:
        process.kill()
        process.join()
        with suppress(EOFError):
            while True:
                what, name = told.recv()
                known[name] = what

    other = writer(0)
    for own in range(1, 9):
        one = writer(own)
        for _ in range(chance.randrange(12)):
            assert one[1].poll(60)
            what, name = one[1].recv()
            known[name] = what
        time.sleep(chance.random() * 0.003)  # within an upload
        end(*one)
    end(*other)
    store = ProgramStore(tmp_path, 1 << 20, time.time_ns)
    listed = {program.name: program for program in store.list("ann")}
    for name, what in known.items():
        assert what == "begins" or (name in listed) == (what == "is"), name
    for program in listed.values():
        assert store.source(program)[1] == SOURCE.decode() + program.name
    blobs = {path.name for path in (tmp_path / "blobs").glob("*/*")}
    assert blobs == {program.hash for program in listed.values()}, "no bytes are left over"


async def test_uploads_that_a_full_disk_has_ended_do_not_count(
    store: ProgramStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = uploads_of(store)
    session = Session(bytes(16), "ann", 0.0, None)

    async def send(data: bytes) -> Any:
        digest = hashlib.sha256(data).hexdigest()
        uploads.upload(session, Upload(digest, "it", len(data)))
        return await uploads.upload_chunk(session, UploadChunk(digest, 0, data))

    with monkeypatch.context() as patch:
        # A device that has no room: it takes the file's place in the store.
        full = Path("/dev/full")
        patch.setattr(store, "temporary_path", lambda: full)
        patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        for number in range(MAX_UPLOADS + 1):
            with pytest.raises(ApiError, match=r"^out-of-resources: .*No space left"):
                await send(b"%d" % number * (1 << 20))
    for number in range(MAX_UPLOADS + 1):
        assert (await send(SOURCE + b"#" * number))["name"] == "it"


async def test_a_disk_that_takes_a_part_of_a_program_is_full(store: ProgramStore) -> None:
    """A write takes what there is room for, without an error: only the next one says why."""
    uploads, session = uploads_of(store), Session(bytes(16), "ann", 0.0, None)
    data = SOURCE + b"#" * 300_000
    digest = hashlib.sha256(data).hexdigest()
    uploads.upload(session, Upload(digest, "it", len(data)))
    other = store.put(SOURCE, "other", "python", "ann")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ApiError, match=r"^out-of-resources: .*File too large"):
            await uploads.upload_chunk(session, UploadChunk(digest, 0, data))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        with pytest.raises(ApiError, match=r"^out-of-resources: .*remove.*let the server write"):
            uploads.remove([other])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_programs_that_are_used_no_more_expire(tmp_path: Path) -> None:
    now = time.time_ns()
    store = ProgramStore(tmp_path, 1 << 20, lambda: now)
    old, launched, running = (
        store.put(SOURCE + name.encode(), name, "python", "ann") for name in ("a", "b", "c")
    )
    again = store.put(SOURCE, "d", "python", "ann")
    now += 3000 * 10**9
    store.used(launched)
    assert store.name_again(again.hash, "d", "ann") is not None

    def left(seconds: float) -> list[str]:
        for _ in store.expire(seconds, {running.hash}):
            pass
        return sorted(program.name for program in store.list())

    assert left(4000) == ["a", "b", "c", "d"]
    assert left(2000) == ["b", "c", "d"]
    assert not Path(old.path).exists()
    now -= 10**6 * 10**9  # the clock jumps
    assert left(1000) == ["b", "c", "d"]
    now += 10**6 * 10**9 + 1500 * 10**9
    store.used(launched)
    now += 600 * 10**9
    assert left(2000) == ["b", "c"]


def test_unfinished_uploads_of_a_user_are_few(store: ProgramStore) -> None:
    """Each keeps a file open, and sessions are many."""

    uploads = uploads_of(store)

    def session(user: str, number: int) -> Session:
        return Session(number.to_bytes(16), user, 0.0, None)

    def begin(one: Session, number: int) -> None:
        uploads.upload(one, Upload(hashlib.sha256(b"%d" % number).hexdigest(), "it", 9))

    sessions = [session("mallory", number) for number in range(USER_UPLOADS + 1)]
    for number in range(USER_UPLOADS):
        begin(sessions[number], number)
    with pytest.raises(ApiError, match=r"^busy: .* in all sessions"):
        begin(sessions[-1], USER_UPLOADS)
    begin(session("victim", 1), 0)
    [left] = uploads._of[sessions[0]].values()
    left.path.unlink()
    left.path.mkdir()  # the disk does not remove it
    uploads.forget(sessions[0])
    begin(sessions[-1], USER_UPLOADS)


def test_names_for_bytes_that_are_here_count_too(
    store: ProgramStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = uploads_of(store, 16_500)
    session = Session(bytes(16), "mallory", 0.0, None)
    digest = store.put(SOURCE, "it", "python", "ann").hash

    def begin(name: str) -> None:
        assert uploads.upload(session, Upload(digest, name, len(SOURCE))) is not None

    for number in range(4):
        begin(f"name-{number}")
    with pytest.raises(ApiError, match=r"^limit-exceeded: your programs take .* bytes"):
        begin("name-4")
    begin("name-3")  # it has this one
    assert len(store.list("mallory")) == 4
    monkeypatch.setattr("pie_control.rpc.program_requests.MOST_PROGRAMS", 4)
    uploads = uploads_of(store)
    with pytest.raises(ApiError, match=r"^limit-exceeded: you have 4 programs"):
        begin("name-4")


async def test_what_is_checked_counts_as_coming(store: ProgramStore) -> None:
    """A check may wait long for its turn, and what has arrived is on the disk."""
    may_end = trio.Event()

    async def prepare(program: Any) -> None:
        await may_end.wait()

    uploads = uploads_of(store, 20_000, prepare)
    session = Session(bytes(16), "mallory", 0.0, None)

    async def send(number: int) -> None:
        data = b"\0asm\x0d\0\1\0" + bytes([number]) * 9_000
        digest = hashlib.sha256(data).hexdigest()
        uploads.upload(session, Upload(digest, f"it-{number}", len(data)))
        await uploads.upload_chunk(session, UploadChunk(digest, 0, data))

    # With their rooms in the index it is too much.
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, 1)
            nursery.start_soon(send, 2)
            while len(uploads._checked) < 2:
                await trio.sleep(0.001)
            with pytest.raises(ApiError, match=r"^limit-exceeded: .* 18018 more are coming"):
                await send(3)
            may_end.set()
    assert "limit-exceeded" in str(raised.value.exceptions[0])


def test_a_component_has_no_source(store: ProgramStore) -> None:
    with pytest.raises(ApiError, match="unsupported: it, of kind component, has no source"):
        store.source(store.put(b"\0asm\x0d\0\1\0", "it", "component", "ann"))


def test_an_unknown_name_is_no_long_search(store: ProgramStore) -> None:
    for number in range(300):
        store.put(b"%d" % number, f"program-{number:04}", "python", "ann")
    with pytest.raises(ApiError, match="did you mean program-0299"):
        store.find("program-0299x", "ann")


def test_of_a_hundred_that_make_the_keys_at_once_one_does(tmp_path: Path) -> None:
    ready = threading.Barrier(100)

    def make(number: int) -> str:
        ready.wait(60)
        return KeyStore(tmp_path).server_pair().public

    with ThreadPoolExecutor(100) as threads:
        assert len(set(threads.map(make, range(100)))) == 1
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["server.json"]


ZEROS = np.zeros(2, np.float32)
WAITS = b"""
from inferlet import session

async def main() -> str:
    session.send("begun")
    return await session.receive()
"""


def test_a_server_goes_on_when_the_disk_refuses_what_it_does_by_itself(short_folder: Path) -> None:
    """It finds folders where its files were."""
    settings: dict[str, Any] = {"durable": {"idle_seconds": 0.2}, "program_seconds": 0.4}
    settings["budgets"] = {"waits": {"instances": 1000}}
    server = Server(short_folder, **settings, **NO_MODEL)
    with server, server.client() as client:
        old = client.upload(SOURCE, "old")
        waiting = client.launch(client.upload(WAITS, "waits"), durable=True)
        damaged = client.launch(client.upload(WAITS, "waits"), durable=True)
        assert waiting.receive() == damaged.receive() == "begun"
        data = short_folder / "data"
        other = data / f"journals/{damaged.id}.journal"
        other.write_bytes(other.read_bytes().replace(b"begun", b"began", 1) + bytes([1]) * 99)
        with server.client() as brief:
            of_session = brief.upload_tensors("v", {"a": ZEROS}, for_session=True)
            gone = next(data.glob(f"programs/**/{of_session}"))
            gone.unlink()
            gone.mkdir()
        journal = data / f"journals/{waiting.id}.journal"
        for path in (*data.glob(f"programs/**/{old}"), data / "usage.sqlite3", journal):
            path.unlink()
            path.mkdir()
        doing = ["remove old programs", "look at budgets", "let an instance sleep"]
        doing.append("remove an adapter of a session")
        until(lambda: all(f"doing='{each}'" in server.log for each in doing))
        assert client.launch(client.upload(SOURCE + b"#", "new")).result() == "x"
        waiting.send("on")
        assert waiting.result() == "on"
        with pytest.raises(InferletFailed, match="its journal is damaged"):
            damaged.result()
    Shelf(journal.parent, print, time.time_ns).remove(waiting.id)
    assert journal.is_dir()


def test_a_durable_program_that_cannot_be_read_stops_no_start(short_folder: Path) -> None:
    with Server(short_folder) as server, server.client() as client:
        program = client.upload(rust_component("text_completion"))
        asked = ["--prompt", "Once", "--max-tokens", "400"]
        instance = client.launch(program, asked, durable=True, detached=True)
        server.process.kill()
        server.process.wait()
    [blob] = short_folder.glob(f"data/programs/**/{program}")
    blob.unlink()
    blob.mkdir()
    cache = short_folder / "cache"  # without its code
    restarted = Server(short_folder, cache_folder=str(cache))
    told = pytest.raises(InferletFailed, match=r"internal: it cannot go on: Is a directory$")
    with restarted as server, server.client() as client, told:
        client.result(instance.id)
