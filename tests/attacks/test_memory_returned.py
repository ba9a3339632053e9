"""What a flood took comes back when it is over."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support.instances import failure, take, until_ready
from support.rig import Rig

from pie_control.instances import ended as records_of_ended
from pie_control.instances.futures import Future
from pie_control.instances.instance import Instance
from pie_control.programs import store as programs
from pie_control.programs.store import ProgramStore
from pie_control.rpc.session import ItemStream, Session
from pie_py.config.server import ServerConfig

MEASURED = """
import resource
from pathlib import Path
from pie_control.__main__ import set_up_memory
from pie_py.config.memory import trim

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

def pages_made():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

set_up_memory()
before = resident()
flood = [bytes(3000) for _ in range(100_000)]
high = resident() - before
kept = flood[::1000]  # so that no arena is free to its end
del flood
trim()
low = resident() - before
made = [pages_made()]
for _ in range(2):
    block = b"x" * (60 << 20)
    del block
    made.append(pages_made())
trim()
print(high, low, made[1] - made[0], made[2] - made[1], resident() - before)
"""


def test_memory_goes_back_to_the_system_and_large_blocks_are_made_of_the_same_pages() -> None:
    """Also between what is kept. A call with many bytes takes such blocks, and no guest runs while
    pages are made."""
    told = subprocess.run([sys.executable, "-c", MEASURED], stdout=subprocess.PIPE, check=True)
    high, low, first, again, kept = map(int, told.stdout.split())
    assert high > 200
    assert low < high / 10
    assert first > 10_000
    assert again < first / 100
    assert kept < high / 10


def test_an_instance_that_has_ended_keeps_no_message_for_itself() -> None:
    """Only what its client has not read stays, and counts."""
    rig = Rig()
    instance = rig.launch()
    for _ in range(8):
        instance.blobs.put(bytes(1 << 20))
        instance.texts.put("x" * 1000)
    instance.outbox.put("said")
    rig.end(instance)
    assert len(instance.blobs) == len(instance.texts) == 0
    assert instance.outbox.pop() == "said"


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free memory: the server's collector comes seldom."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _executed(rig: Rig) -> Instance:
    instance = rig.launch()
    rig.executor.add(instance)
    rig.executor.turn()
    return instance


def _read_to_the_end(rig: Rig) -> Instance:
    instance = rig.launch()
    reader = ItemStream(instance, lambda stream: None)
    reader.attach(Session(b"", "ann", 0.0), 8)
    assert reader.take() is None  # and waits for what comes
    rig.end(instance)
    assert reader.take() is not None
    assert reader.take() is None
    return instance


def _subscribed(rig: Rig) -> Instance:
    instance = rig.launch()
    rig.parts.messaging.subscribe(instance, "news")
    return instance


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("lived", [_executed, _read_to_the_end, _subscribed])
def test_an_instance_goes_with_its_record(
    monkeypatch: pytest.MonkeyPatch, lived: Callable[[Rig], Instance]
) -> None:
    """It was in a circle, with its log, until the collector came."""
    monkeypatch.setattr(records_of_ended, "MOST", 0)
    rig = Rig()
    instance = lived(rig)
    rig.end(instance)
    gone = weakref.ref(instance)
    del instance
    assert gone() is None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("given_up", [False, True])
def test_a_future_goes_when_it_is_taken_or_given_up(given_up: bool) -> None:
    """Its timer held it, and it held the timer."""

    def futures() -> int:
        return sum(
            isinstance(each, Future) and each.outside is not None for each in gc.get_objects()
        )

    async def main() -> None:
        rig = Rig(clock=trio.current_time)
        instance, before = rig.launch(), futures()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.parts.timers.run)
            handle = rig.function("sleep")(instance, 1_000_000)
            await until_ready(instance, handle)
            assert futures() == before + 1
            if given_up:
                instance.futures.cancel(handle)
            else:
                take(instance, handle)
            nursery.cancel_scope.cancel()
        assert futures() == before

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class _Text(str):
    """One whose end can be seen."""


@pytest.mark.usefixtures("no_collector")
def test_work_queues_go_with_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each held the user's queues, to be dropped from them."""
    monkeypatch.setattr("pie_control.api.messaging.functions.IDLE_BYTES", 0)
    rig = Rig(ServerConfig())
    instance = rig.launch()
    text = _Text("a message")
    rig.parts.messaging.push(instance, "work", text)
    gone = weakref.ref(text)
    del text
    assert gone() is not None
    rig.end(instance)
    assert gone() is None


async def test_children_that_are_about_to_start_are_bounded_by_user() -> None:
    """Each instance of a fork bomb had 256 that waited, with a task for each."""
    rig = Rig(ServerConfig(max_instances=3))
    program = rig.programs.put(b"def main(args): ...", "forks", "python", "ann")
    launch = rig.function("launch")

    async with trio.open_nursery() as nursery:
        await nursery.start(rig.parts.launcher.run)
        one, other = rig.launch(), rig.launch()
        for parent in (one, other, one):
            launch(parent, "forks", [])
        with failure("limit-exceeded", "3 children"):
            launch(other, "forks", [])
        launch(rig.launch("eve"), program.hash, [])
        await trio.testing.wait_all_tasks_blocked()  # none of them can be launched here
        launch(other, "forks", [])
        nursery.cancel_scope.cancel()


def test_instances_of_a_program_share_what_is_known_of_it(tmp_path: Path) -> None:
    store = ProgramStore(tmp_path, 1 << 20, lambda: 1)
    program = store.put(b"def main(args): ...", "shared", "python", "ann")
    assert store.find("shared", "ann") is store.find(program.hash, "ann") is program


@pytest.mark.parametrize("size", [60_000, 150_000])
def test_sources_in_memory_are_bounded_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int
) -> None:
    """They were 256, of up to 256 MB each."""
    monkeypatch.setattr(programs, "MOST_TEXT_BYTES", 100_000)
    store = ProgramStore(tmp_path, 1 << 20, lambda: 1)
    several = [store.put(bytes([each]) * size, f"p{each}", "python", "ann") for each in range(9)]
    tracemalloc.start()
    for program in several:
        assert store.source(program)[1] == chr(int(program.name[1])) * size
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 120_000
