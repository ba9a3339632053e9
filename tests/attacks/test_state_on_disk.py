"""What is on disk survives damage, a full disk, and others who write it at the same time."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from pie_control.confined.pool import ConfinedPool
from pie_control.errors import ApiError, ProgramRejected
from pie_control.programs.components import Components
from pie_control.programs.store import ProgramStore
from pie_control.rpc.params import Chunk, Upload
from pie_control.rpc.session import Session
from pie_control.rpc.uploads import MAX_UPLOADS, Uploads
from pie_control.wasm import Engine, EngineConfig
from pie_py.config.keys import KeyPair, KeyStore
from pie_py.config.services import ConfinedConfig

SOURCE = b"async def main(args): return 'x'\n"


@pytest.fixture
def store(tmp_path: Path) -> ProgramStore:
    return ProgramStore(tmp_path / "programs", 1 << 20, time.time_ns)


def test_a_damaged_source_is_told_and_mended_by_another_upload(store: ProgramStore) -> None:
    program = store.put(SOURCE, "it", "python", "ann")
    Path(program.path).write_bytes(b"y" * len(SOURCE))
    with pytest.raises(ApiError, match=r"not-found: .*is damaged on the server; upload it again"):
        store.source(program)
    assert not store.has(program.hash)
    assert store.name_again(program.hash, "it", "ann") is None
    again = store.put(SOURCE, "it", "python", "ann")
    assert store.source(again)[1] == SOURCE.decode()


def test_a_blob_that_was_cut_off_is_not_there(store: ProgramStore) -> None:
    program = store.put(SOURCE, "it", "python", "ann")
    Path(program.path).write_bytes(SOURCE[:-1])
    assert store.name_again(program.hash, "it", "ann") is None


def test_a_damaged_component_is_told(store: ProgramStore, tmp_path: Path) -> None:
    engine = Engine(EngineConfig(max_instances=1, cache_folder=tmp_path / "compiled"))
    components = Components(engine, tmp_path, lambda runtime: None, ConfinedPool(ConfinedConfig()))
    program = store.put(b"\0asm\x0d\0\1\0 and more", "it", "component", "ann")
    Path(program.path).write_bytes(b"\0asm\x0d\0\1\0 and MORE")

    async def test() -> None:
        with pytest.raises(ProgramRejected, match="is damaged on the server; upload it again"):
            await components.load(program)

    trio.run(test)
    assert not store.has(program.hash)


def test_an_index_cannot_name_files_elsewhere(store: ProgramStore, tmp_path: Path) -> None:
    store.put(SOURCE, "it", "python", "ann")
    index = tmp_path / "programs" / "index.json"
    entries = json.loads(index.read_text())
    entries["programs"][0]["hash"] = "../../../../etc/passwd"
    index.write_text(json.dumps(entries))
    assert ProgramStore(tmp_path / "programs", 1 << 20, time.time_ns).list() == []


def test_uploads_that_a_full_disk_has_ended_do_not_count(
    store: ProgramStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(program: Any) -> None:
        raise AssertionError("no component is sent")

    uploads = Uploads(store, prepare, ConfinedPool(ConfinedConfig()))
    session = Session(bytes(16), "ann", 0.0, None)

    async def send(data: bytes) -> Any:
        digest = hashlib.sha256(data).hexdigest()
        uploads.begin(session, Upload(digest, "it", len(data)))
        return await uploads.add(session, Chunk(digest, 0, data))

    async def test() -> None:
        with monkeypatch.context() as patch:
            # A device that has no room: it takes the file's place in the store.
            full = Path("/dev/full")
            patch.setattr(store, "temporary_path", lambda: full)
            patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
            for number in range(MAX_UPLOADS + 1):
                with pytest.raises(ApiError, match=r"^out-of-resources: .*No space left"):
                    await send(b"%d" % number * (1 << 20))
        for number in range(MAX_UPLOADS + 1):
            assert (await send(SOURCE + b"#" * number)).name == "it"

    trio.run(test)


def test_an_unknown_name_is_no_long_search(store: ProgramStore) -> None:
    for number in range(300):
        store.put(b"%d" % number, f"program-{number:04}", "python", "ann")
    with pytest.raises(ApiError, match="did you mean program-0299"):
        store.find("program-0299x", "ann")


def test_a_servers_keys_are_made_once_however_many_make_them(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        pairs = pool.map(_server_pair, [tmp_path / str(i // 8) for i in range(80)], chunksize=1)
    for first in range(0, 80, 8):
        assert len({pair.public for pair in pairs[first : first + 8]}) == 1


def _server_pair(folder: Path) -> KeyPair:
    return KeyStore(folder).server_pair()
