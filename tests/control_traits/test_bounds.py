"""Bounds on what a program or a client passes, so that nobody holds the others up."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import trio
import trio.testing
from support.instances import Instances, failure
from support.rig import runtime
from support.scheduler_fixtures import Server

from pie_control.api import session
from pie_control.instances.ended import record_bytes
from pie_control.instances.instance import ARGUMENT_OVERHEAD, Instance
from pie_control.instances.launcher import check_arguments
from pie_control.instances.ledger import MOST_ROWS, OTHER, Ledger
from pie_control.rpc.session import ItemStream, Session
from pie_control.tasks import take_off
from pie_control.timers import Timers
from pie_control.wasm.linker import SUSPENDED
from pie_py.config.limits import Budget
from pie_py.wire.rpc import MAX_ARGUMENT_BYTES


def test_a_wait_names_at_most_as_many_futures_as_may_be_open() -> None:
    one = Instances().launch(futures=3)
    handles = [session.receive(one) for _ in range(3)]
    with failure("limit-exceeded", "a wait for 4 futures; 3 at most"):
        runtime.wait(one, [*handles, handles[0]])
    assert one.turn.awaited is None
    assert runtime.wait(one, handles) is SUSPENDED
    assert one.turn.awaited == handles


@pytest.mark.parametrize("text", ["", "x" * 100])
def test_arguments_count_besides_their_text(text: str) -> None:
    most = MAX_ARGUMENT_BYTES // (len(text) + ARGUMENT_OVERHEAD)
    check_arguments([text] * most)
    with failure("limit-exceeded", "the arguments have more than"):
        check_arguments([text] * (most + 1))


def test_records_count_empty_arguments() -> None:
    one = Instances().launch()
    one.args = [""] * 1000
    assert record_bytes(one) >= 1000 * ARGUMENT_OVERHEAD


@pytest.mark.parametrize("child", [False, True])
async def test_a_child_lives_on_when_its_reader_leaves(child: bool) -> None:
    instances = Instances()
    one = instances.launch()
    if child:
        one.parent = instances.launch()

    reader = Session(bytes(16), "ann", 0.0, None)
    stream = ItemStream(one, lambda stream: None)
    stream.attach(reader, 1)
    stream.detach(0.0)
    assert (one.client.left_at is None) == child
    assert not one.client.attached


def test_a_counter_forgets_what_is_gone() -> None:
    counts = Counter(ann=3, bob=1)
    take_off(counts, "ann")
    assert counts["ann"] == 2
    take_off(counts, "ann", 2)
    assert list(counts) == ["bob"]


def with_many_tags(instance: Instance, folder: Path, budgets: dict[str, Budget]) -> Ledger:
    """A ledger that has counted a second for each of 20 tags more than a day has rows."""
    ledger = Ledger(
        folder / "usage.sqlite3",
        budgets,
        time.time_ns,
        tuple,
        lambda instance: 0.0,
        lambda instance, state, text: None,
    )
    for number in range(MOST_ROWS + 20):
        instance.tag = f"tag {number}"
        ledger.waited(instance.account, 1.0)
    return ledger


def test_tags_beyond_a_day_s_rows_are_counted_together(tmp_path: Path) -> None:
    instance = Server().launch("ann")
    ledger = with_many_tags(instance, tmp_path, {})
    rows = trio.run(ledger.usage, "ann", 2)
    assert len(rows) == MOST_ROWS + 1
    assert sum(row["tool_seconds"] for row in rows) == MOST_ROWS + 20
    assert sum(row["tool_seconds"] for row in rows if row["program"] == OTHER) == 20


def test_tags_beyond_a_day_s_rows_count_for_a_budget(tmp_path: Path) -> None:
    """An application that names its own users has many tags."""
    instance = Server().launch("ann")
    budgets = {instance.program.name: Budget(tool_seconds=MOST_ROWS + 10)}
    ledger = with_many_tags(instance, tmp_path, budgets)

    async def look() -> None:
        await ledger._flush()
        await ledger._look()

    trio.run(look)
    with failure("limit-exceeded", "tool_seconds of ann today"):
        ledger.check("ann", instance.program.name)


def test_withdrawn_timers_behind_a_far_one_are_dropped() -> None:
    """A guest may sleep and give it up in a loop, behind its own hour of wall time."""

    async def main() -> None:
        timers = Timers(trio.current_time)
        fired: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            timers.call_later(3600, lambda: fired.append(0))
            kept = [timers.call_later(0.05, lambda i=i: fired.append(i)) for i in range(100)]  # type: ignore[misc]
            for _ in range(10):
                for _ in range(1000):
                    timers.call_later(7200, lambda: fired.append(-1)).cancel()
                await trio.lowlevel.checkpoint()
            assert len(timers) < 1000
            await trio.sleep(0.1)
            assert fired == list(range(len(kept)))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
