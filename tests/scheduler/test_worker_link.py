"""The link to a worker process: no answer is left lying, whoever sends, and whenever it comes."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from support.checkpoints import make_llama

from pie_control.scheduler.link import WorkerFailed, WorkerLink
from pie_py.config.model import ModelConfig
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import Located, Plan, PlanResult

PLANS = 600
SECONDS = 60


@pytest.fixture
def link(tmp_path: Path) -> WorkerLink:
    """To a worker that answers at once."""
    model = ModelConfig(source=str(make_llama(tmp_path / "llama")), kv_pages=16)
    return WorkerLink(ServerConfig(models=(model,), worker_module="benchmarks.instant_worker"))


@asynccontextmanager
async def running(link: WorkerLink) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        yield nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("outside", [0, 3, 1], ids=["answers send", "both send", "a task sends"])
async def test_every_plan_is_answered_in_order(link: WorkerLink, outside: int) -> None:
    """Two plans in flight, as the dispatcher keeps them, at a worker that answers at once.

    `outside` of 0: each answer sends the next plan. Of n: every n-th plan is left to another task,
    which finds the socket as it is: its edge may have been taken.
    """
    sent = 0
    answered: list[int] = []
    left = trio.Event()
    done = trio.Event()

    def send() -> None:
        nonlocal sent
        sent += 1
        link.send(Plan(sent, "llama"))

    def on_results(results: list[PlanResult]) -> None:
        answered.extend(result.id for result in results)
        while sent < PLANS and link.in_flight < 2:
            if outside and sent % outside == 0:
                left.set()
                return
            send()
        if len(answered) == PLANS:
            done.set()

    async def send_what_is_left() -> None:
        nonlocal left
        while True:
            await left.wait()
            left = trio.Event()
            while sent < PLANS and link.in_flight < 2:
                send()

    link.on_results = on_results
    async with running(link) as nursery:
        nursery.start_soon(send_what_is_left)
        send()
        with trio.fail_after(SECONDS):
            await done.wait()
    assert answered == list(range(1, PLANS + 1))
    assert link.in_flight == 0


async def test_a_plan_that_comes_as_the_worker_dies_is_lost_with_it(link: WorkerLink) -> None:
    """Between the process's end and `on_lost` others run, to whom the worker still seems ready."""
    lost = trio.Event()
    link.on_lost = lambda reason: lost.set()
    async with running(link):
        assert link.pid is not None
        os.kill(link.pid, signal.SIGKILL)
        with trio.fail_after(SECONDS):
            while not lost.is_set():  # in every pass of the event loop
                assert link.ready
                link.send(Plan(99, "llama"))
                await trio.lowlevel.checkpoint()
        assert link.in_flight == 0


async def test_a_worker_for_which_there_is_no_room_is_started_once_there_is(
    link: WorkerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder for temporary files is full, or gone: the server waits, and does not end."""
    lost, back = trio.Event(), trio.Event()
    link.on_lost = lambda reason: lost.set()
    async with running(link):
        link.on_hello = lambda hello: back.set()
        monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
        assert link.pid is not None
        os.kill(link.pid, signal.SIGKILL)
        with trio.fail_after(SECONDS):
            await lost.wait()
            with capture_logs() as told:
                while not any("cannot be started" in each["reason"] for each in told):
                    await trio.sleep(0.01)
            monkeypatch.undo()
            await back.wait()


async def test_a_worker_that_ends_before_it_is_ready_is_told_of() -> None:
    link = WorkerLink(ServerConfig(worker_module="this"))

    with pytest.raises(BaseExceptionGroup) as failed:
        async with running(link):
            pass
    assert failed.group_contains(WorkerFailed, match="^it exited with status 0 before it was ready")


async def test_a_model_is_located_before_it_is_served(tmp_path: Path) -> None:
    """So that its tokenizer can be read while it loads."""
    folder = make_llama(tmp_path / "llama")
    link = WorkerLink(ServerConfig(models=(ModelConfig(source=str(folder), kv_pages=16),)))
    found: list[tuple[Located, bool]] = []
    link.on_located = lambda told: found.append((told, link.ready))
    async with running(link):
        pass
    assert found == [(Located("llama", str(folder)), False)]
