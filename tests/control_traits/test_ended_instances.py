"""What is kept of instances that have ended, and for how long."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import trio
import trio.testing
from support.instances import Instances
from support.rig import Rig

from pie_control.errors import ApiError
from pie_control.instances import ended as records_of_ended
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import InstanceState


@pytest.mark.parametrize("kept", ["log", "result", "arguments", "messages"])
def test_records_are_bounded_by_what_they_hold(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    monkeypatch.setattr(records_of_ended, "MOST_BYTES", 250_000)
    instances = Instances()
    ended = instances.registry
    reader = instances.launch()
    reader.client.attached = True
    instances.end(reader)
    for _ in range(100):
        one = instances.launch()
        if kept == "log":
            one.log.add("info", "x" * 4000)
        elif kept == "arguments":
            one.args = ["x" * 2000, "y" * 2000]
        elif kept == "messages":
            one.outbox.put("x" * 4000)
        ended.end(one, InstanceState.FINISHED, "x" * 4000 if kept == "result" else "")
    assert (ended.launched, ended.live_count) == (101, 0)
    records = ended.instances()
    assert 10 <= len(records) <= 25
    assert records[0] is reader  # somebody reads it still
    assert records[-1] is one


def test_a_server_that_stops_waits_for_the_last_instance() -> None:
    instances = Instances()
    living = [instances.launch() for _ in range(2)]
    closed = instances.registry.close()
    for one in living:
        assert not closed.is_set()
        instances.end(one)
    assert closed.is_set()
    assert instances.registry.close().is_set()


def test_small_records_stay() -> None:
    instances = Instances()
    for _ in range(records_of_ended.MOST + 5):
        instances.end(instances.launch())
    assert len(instances.registry.instances()) == records_of_ended.MOST


@pytest.mark.parametrize("kept", ["number", "bytes"])
def test_a_user_who_ends_many_takes_no_other_ones_results(
    monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setattr(records_of_ended, "MOST", 50)
    monkeypatch.setattr(records_of_ended, "MOST_BYTES", 250_000)
    instances = Instances()
    mine = [instances.launch(user="ann") for _ in range(5)]
    for one in mine:
        instances.registry.end(one, InstanceState.FINISHED, "r" * 1000)
    for _ in range(200):
        other = instances.launch(user="mallory")
        instances.registry.end(other, InstanceState.FINISHED, "x" * 4000 if kept == "bytes" else "")
    assert instances.registry.instances("ann") == mine
    assert instances.registry.instances("mallory")[-1] is other


def test_an_error_leaves_nothing_to_the_collector() -> None:
    """A future's error had a traceback, whose frames held the future."""
    futures = Instances().launch().futures
    errors: list[weakref.ref[ApiError]] = []

    def fails() -> None:
        future = futures.create(FutureKind.DONE)
        try:
            raise ApiError("not-found", "no such thing")
        except ApiError as error:
            future.fail(error)
            errors.append(weakref.ref(error))
        futures.cancel(future.handle)

    gc.collect()
    gc.disable()
    try:
        fails()
        assert errors[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("again", [False, True])
async def test_an_answer_that_comes_after_the_end_is_dropped(again: bool) -> None:
    """A thread cannot be given up: it goes on when its instance has been killed, or has begun again
    as a durable one does whose worker was lost.
    """
    rig, may_end = Rig(), threading.Event()
    instance, ended, never = rig.launch(), trio.Event(), trio.Event()

    async def answer_late() -> str:
        found = await trio.to_thread.run_sync(may_end.wait)
        ended.set()
        return str(found)

    async with trio.open_nursery() as nursery:
        await nursery.start(rig.parts.answers.run)
        rig.parts.answers.start(instance, answer_late)
        await trio.testing.wait_all_tasks_blocked()
        if again:
            rig.registry.begin_again(instance)
            rig.parts.answers.start(instance, never.wait)
            await trio.testing.wait_all_tasks_blocked()
        else:
            rig.end(instance)
        may_end.set()
        await ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert instance not in rig.executor._answers
        nursery.cancel_scope.cancel()
