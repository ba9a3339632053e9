"""What guests really take of the memory: how it is counted, and who gives when it is too much."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.instances import failure
from support.rig import PROGRAM, Rig
from support.servers import Server

from pie_control.errors import ApiError
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.guest_memory import GuestMemory, correct, too_much
from pie_control.instances.instance import PAGE_BYTES, Instance, InstanceState
from pie_py.client.errors import InferletFailed
from pie_py.config.keys import LOCAL_USER
from pie_py.config.limits import Quota, Quotas
from pie_py.config.server import ServerConfig
from pie_py.testing.script import replaying

MIB = 1 << 20
FILLS = """
from inferlet import session
from inferlet.runtime import sleep

async def main(args):
    held = [bytes([7]) * (1 << 20) for _ in range(int(args[0]))]
    session.send("full")
    await sleep(float(args[1]))
    return str(len(held))
"""


def holding(rig: Rig, user: str, mib: int) -> Instance:
    """An instance whose guest has taken so much."""
    made = rig.launch(user)
    made.pages_made = mib * MIB / PAGE_BYTES
    return made


def test_pages_are_those_of_the_guests_that_ran_by_their_time() -> None:
    rig, pages, checks = Rig(), [1000], [0]
    one, other = rig.launch(), rig.launch()

    def check(size: int) -> None:
        assert size > 10 * MIB
        checks[0] += 1

    memory = GuestMemory(check, lambda: pages[0])
    pages[0] += 5000  # the server's own
    memory.begin()
    memory.ran(one, 10_000)
    memory.ran(other, 30_000)
    pages[0] += 400
    memory.end()
    assert (one.pages_made, other.pages_made) == (100, 300)
    assert checks == [0]
    memory.begin()
    pages[0] += 20_000
    memory.ran(one, 5_000_000)  # counted at once
    pages[0] += 7
    memory.ran(other, 5)
    memory.end()
    assert (one.pages_made, other.pages_made) == (20_100, 307)
    assert checks == [1]


def test_an_instance_counts_with_no_more_than_it_may_take() -> None:
    made = holding(Rig(), "ann", 100_000)
    assert made.memory_bytes == 2 * made.limits.memory, "a component may have two memories"


def test_guests_have_no_more_than_the_process() -> None:
    """Calls with many bytes make pages that are the server's."""
    rig = Rig()
    both = [holding(rig, "ann", 100), holding(rig, "bob", 50)]
    correct(both, 300 * MIB)
    assert [i.memory_bytes >> 20 for i in both] == [100, 50]
    correct(both, 75 * MIB)
    assert [i.memory_bytes >> 20 for i in both] == [50, 25]


def test_the_largest_of_who_has_too_much_ends() -> None:
    rig = Rig(ServerConfig(guest_memory=400 * MIB, quota=Quota()))
    kept, largest, small = (holding(rig, "mallory", mib) for mib in (90, 100, 20))
    others = [holding(rig, "victim", 150), holding(rig, "eve", 10)]
    rig.registry.check_memory(2000 * MIB)
    assert largest.ended is not None
    assert largest.ended.state is InstanceState.FAILED
    assert "100 MiB" in largest.ended.text
    assert "more than 200 MiB" in largest.ended.text
    assert not any(i.ended for i in (kept, small, *others))


def test_what_has_ended_is_freed_before_another_instance_ends() -> None:
    """It goes by and by, and until then it is taken."""
    rig = Rig(ServerConfig(guest_memory=400 * MIB, quota=Quota()))
    rig.registry.do_later = lambda owner, work: None
    ended = [holding(rig, "mallory", 90) for _ in range(2)]
    for instance in ended:
        rig.registry.condemn(instance, "test")
    lives = holding(rig, "mallory", 100)
    assert rig.registry.memory_of("mallory") == 280 * MIB
    rig.registry.check_memory(2000 * MIB)
    assert rig.registry.memory_of("mallory") == 190 * MIB
    assert lives.ended is None


def test_children_of_who_ends_are_freed_before_another_instance_ends() -> None:
    """They end with their parent, and would else be found again for ever."""
    rig = Rig(ServerConfig(guest_memory=800 * MIB, quota=Quota()))
    parent = holding(rig, "ann", 55)
    for _ in range(8):
        child = rig.registry.create(PROGRAM, [], "ann", parent=parent)
        rig.registry.add(child)
        child.pages_made = 52 * MIB / PAGE_BYTES
    beside = holding(rig, "ann", 10)
    rig.registry.check_memory(2000 * MIB)
    assert parent.ended is not None
    assert beside.ended is None
    assert rig.registry.memory_of("ann") <= 400 * MIB


def test_all_together_have_no_more_than_there_is() -> None:
    """Who has the most for his weight gives, though he has less than one may have."""
    config = ServerConfig(
        guest_memory=400 * MIB, quota=Quota(), quotas={"rich": Quota(weight=4.0, share=0.9)}
    )
    rig = Rig(config)
    rich = holding(rig, "rich", 210)
    ann = [holding(rig, "ann", 60), holding(rig, "ann", 70)]
    bob = holding(rig, "bob", 100)
    quotas = Quotas(config.quota, config.quotas)
    assert too_much([rich, *ann, bob], quotas, 440 * MIB) is None
    rig.registry.check_memory(2000 * MIB)
    assert [i for i in (rich, *ann, bob) if i.ended] == [ann[1]]


def test_results_that_are_not_taken_count_as_memory() -> None:
    """Thousands of distributions of a whole vocabulary, asked for and left."""
    rig = Rig(ServerConfig(guest_memory=20 * MIB, quota=Quota()))
    one, other = (rig.launch("ann", memory=8 * MIB) for _ in range(2))
    row = np.zeros(MIB // 8, np.float32), "x" * (MIB // 2)

    def come(instance: Instance, count: int) -> list[Future]:
        found = [instance.futures.create(FutureKind.DIST) for _ in range(count)]
        for future in found:
            future.resolve(row)
        return found

    came = come(one, 9)
    assert [future.error is None for future in came] == [True] * 8 + [False]
    assert one.memory_bytes == 8 * MIB
    with pytest.raises(ApiError, match="has not taken have 8 MiB"):
        one.futures.take(came[8].handle, FutureKind.DIST)
    assert one.futures.take(came[0].handle, FutureKind.DIST) is row
    one.futures.cancel(came[1].handle)
    assert one.memory_bytes == 6 * MIB
    assert [future.error is None for future in come(other, 5)] == [True] * 4 + [False]
    correct([one, other], 5 * MIB)
    assert one.memory_bytes == 6 * MIB, "no page is a guest's"
    rig.registry.check_memory(2000 * MIB)
    with pytest.raises(ApiError, match="taken 10 MiB of memory"):
        rig.launch("ann")
    one.futures.close()
    rig.launch("ann")
    assert one.memory_bytes == 0
    assert come(other, 1)[0].error is None


def test_who_has_too_much_launches_no_more() -> None:
    rig = Rig(
        ServerConfig(guest_memory=800 * MIB, quota=Quota(), quotas={"small": Quota(memory=MIB)})
    )
    first, _ = holding(rig, "mallory", 200), holding(rig, "mallory", 200)
    rig.registry.check_memory(2000 * MIB)
    with failure("limit-exceeded", "have taken 400 MiB", "400 MiB here"):
        rig.launch("mallory")
    rig.launch("victim")
    rig.launch(LOCAL_USER)
    rig.end(first)
    rig.launch("mallory")
    holding(rig, "small", 1)
    rig.registry.check_memory(2000 * MIB)
    with failure("limit-exceeded", "1 MiB here"):
        rig.launch("small")
    assert math.isclose(rig.registry.memory_of("mallory"), 200 * MIB, rel_tol=0.01)


def test_a_program_that_fills_its_memory_ends_and_a_small_one_does_not(tmp_path: Path) -> None:
    settings = {**replaying(tmp_path), "guest_memory": 200 * MIB, "spare_instances": 2}
    settings["limits"] = {"memory": 512 * MIB}  # that of one instance is not what ends it
    with Server(tmp_path, **settings) as server, server.client() as client:
        program = client.upload(FILLS.encode(), name="fills")
        small = client.launch(program, ["20", "600"])
        assert small.receive(60) == "full"
        before = psutil.Process(server.process.pid).memory_info().rss
        assert client.launch(program, ["60", "0"]).result(60) == "60"
        with pytest.raises(InferletFailed, match="limit-exceeded: it has taken"):
            client.launch(program, ["400", "600"]).result(60)
        assert psutil.Process(server.process.pid).memory_info().rss < before + 300 * MIB
        [quota] = client.quota()
        [memory] = [kind for kind in quota["kinds"] if kind["kind"] == "bytes of memory"]
        assert 20 * MIB < memory["has"] < 60 * MIB
        assert small.id in {one["id"] for one in client.instances()}
