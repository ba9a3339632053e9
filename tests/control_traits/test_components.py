"""Compiled code is kept for the programs that ran last, and longer for instances that still run."""

from __future__ import annotations

import gc
import hashlib
import shutil
import weakref
from pathlib import Path

import pytest
import trio
from support.clusters import wait_for
from support.wat_guests import HOLD, OK, WAITS, guest

from pie_control.confined.pool import ConfinedPool
from pie_control.errors import ApiError, ProgramRejected
from pie_control.programs.components import Components
from pie_control.programs.optimizing import is_optimized
from pie_control.programs.store import Program
from pie_control.wasm.engine import Component, Engine, EngineConfig, GuestLimits
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.linker import Linker
from pie_py.build.runtimes import RUNTIMES
from pie_py.config.services import ConfinedConfig

CONFINED = ConfinedPool(ConfinedConfig())


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(EngineConfig(max_instances=4, cache_folder=tmp_path_factory.mktemp("compiled")))


def program(folder: Path, name: str, data: bytes) -> Program:
    data += bytes([0, len(name) + 1, len(name)]) + name.encode()  # a custom section: another hash
    path = folder / name
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return Program(digest, name, "component", len(data), "ann", 0, str(path))


def test_no_upload_builds_the_runtime_of_javascript(engine: Engine, tmp_path: Path) -> None:
    """That takes packages from a registry, and runs what they bring along."""
    source = tmp_path / "a.js"
    source.write_text("export const main = () => 1;")
    wanted = Program("0" * 64, "a", "javascript", 28, "ann", 0, str(source))
    components = Components(engine, tmp_path / "cache", lambda runtime: None, CONFINED)
    with pytest.raises(ProgramRejected, match="pie-py build --runtime javascript"):
        trio.run(components.load, wanted)
    assert not (tmp_path / "cache").exists()


def test_a_full_cache_is_an_error_by_name_at_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the folder is there already or not."""
    source, cache = tmp_path / "a.py", tmp_path / "cache"
    source.write_text("async def main(): pass")
    wanted = Program("0" * 64, "a", "python", 22, "ann", 0, str(source))
    components = Components(engine, cache, lambda runtime: None, CONFINED)
    usage, asked = shutil.disk_usage(tmp_path)._replace(free=1 << 20), []

    def of(folder: Path) -> object:
        asked.append(folder.is_dir())
        return usage

    monkeypatch.setattr("shutil.disk_usage", of)
    with pytest.raises(ApiError, match=f"no room for compiled code in {cache}") as refused:
        trio.run(components.load, wanted)
    assert refused.value.code == "out-of-resources"
    assert asked == [True]
    assert not components.doing


@pytest.mark.usefixtures("nothing_made")
@pytest.mark.parametrize("baseline", [False, True])
def test_a_server_for_one_run_compiles_the_runtime_as_it_starts(
    tmp_path: Path, baseline: bool
) -> None:
    """Others wait for the first program: the compiler that optimizes takes the CPU for 8 s."""
    config = EngineConfig(max_instances=4, cache_folder=tmp_path / "compiled", baseline=baseline)
    runtime: Path = RUNTIMES["python"].runtime_file(tmp_path)
    runtime.write_bytes(guest([HOLD], WAITS))
    components = Components(Engine(config), tmp_path, lambda runtime: None, CONFINED)
    trio.run(components.load_ahead)
    assert any(tmp_path.glob("compiled/*.cwasm")) == baseline
    assert not components.doing
    if baseline:  # a process beside makes the optimized code, for servers to come
        wait_for(lambda: is_optimized("python", tmp_path, config))


@pytest.mark.usefixtures("nothing_made")
@pytest.mark.parametrize("data", [b"", b"\0asm", None])
def test_a_server_starts_beside_a_damaged_runtime(tmp_path: Path, data: bytes | None) -> None:
    """A program that needs it says so."""
    config = EngineConfig(max_instances=4, cache_folder=tmp_path / "compiled", baseline=True)
    if data is not None:
        RUNTIMES["python"].runtime_file(tmp_path).write_bytes(data)
    components = Components(Engine(config), tmp_path, lambda runtime: None, CONFINED)
    trio.run(components.load_ahead)
    assert not any(tmp_path.glob("compiled/*.cwasm"))


def kept(engine: Engine, most: int) -> Components:
    return Components(engine, Path("unused"), lambda runtime: None, CONFINED, most)


async def test_those_that_ran_last_are_kept(engine: Engine, tmp_path: Path) -> None:
    components, data = kept(engine, 2), guest([], OK)
    a, b, c = (program(tmp_path, name, data) for name in "abc")
    for each in (a, b):
        assert components.find(each) is None
        assert await components.load(each) is components.find(each)
    assert components.find(a) is not None  # b is now the one that nobody has asked for
    await components.load(c)
    assert [components.find(each) is None for each in (a, b, c)] == [False, True, False]
    assert await components.load(b) is components.find(b)
    assert len(components) == 2


def test_an_instance_outlives_its_place(engine: Engine, tmp_path: Path) -> None:
    async def main() -> tuple[Guest, weakref.ref[Component]]:
        components = kept(engine, 1)
        first = await components.load(program(tmp_path, "a", guest([HOLD], WAITS)))
        running = Guest(Linker(engine, [HOLD]), first, None, GuestLimits(1 << 24, 100))
        running.start([])
        while running.poll() is not Status.WAITING:
            pass
        await components.load(program(tmp_path, "b", guest([], OK)))
        return running, weakref.ref(first)

    running, component = trio.run(main)
    gc.collect()
    assert component() is not None
    running.resume("done")
    while running.poll() is not Status.DONE:
        pass
    assert running.outcome == (True, "done")
    del running
    engine.reaper.finish()
    gc.collect()
    assert component() is None


async def test_many_who_want_one_at_once_get_the_same(engine: Engine, tmp_path: Path) -> None:
    components, found = kept(engine, 8), []
    wanted = program(tmp_path, "a", guest([], OK))

    async def load() -> None:
        found.append(await components.load(wanted))

    async with trio.open_nursery() as nursery:
        for _ in range(9):
            nursery.start_soon(load)
    assert len(found) == 9
    assert len({id(component) for component in found}) == 1


async def test_one_that_is_refused_is_not_kept(engine: Engine, tmp_path: Path) -> None:
    components = kept(engine, 8)
    bad = program(tmp_path, "bad", b"\0asm nothing")
    for _ in range(2):
        with pytest.raises(ProgramRejected):
            await components.load(bad)
    assert len(components) == 0
    assert not components._loading
