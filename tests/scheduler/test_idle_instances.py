"""Instances that wait cost nothing: no turn, plan or timer looks at all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import trio
import trio.testing
from support.puppets import Puppet, PuppetProgram, call
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server

from pie_control.instances.futures import FutureKind
from pie_control.timers import Timers

FEW, MANY = 10, 900
STEPS = 20


class Operations:
    """Bytecodes that have run, in the code under test and what it calls."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            frame.f_trace_opcodes = True
            self.count += event == "opcode"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(before)


def _idle(guest: Guest) -> PuppetProgram:
    future = guest.instance.futures.create_outside(FutureKind.DONE, "tool")
    yield from call(runtime.wait, guest.instance, [future.handle])
    return ""


def _busy(guest: Guest) -> PuppetProgram:
    page, embed = guest.pages(1), guest.embeds(1)
    for position in range(STEPS):
        guest.embed([7], position % 8, embed)
        guest.forward([], embed, [], embed)
        future = guest.dist(embed[0])
        yield from call(runtime.wait, guest.instance, [future])
    assert page
    return ""


def _launch(server: Server, program: Callable[[Guest], PuppetProgram]) -> None:
    guest = Guest(server)
    guest.pages(1)
    guest.instance.guest = Puppet(program(guest))  # type: ignore[assignment]
    server.executor.add(guest.instance)


def _operations_of_a_generation(idle: int) -> int:
    server = Server(kv_pages=4 * MANY, embeds=4 * MANY)
    for _ in range(idle):
        _launch(server, _idle)
    while server.executor.has_ready:
        server.executor.turn()
    _launch(server, _busy)
    operations = Operations()
    with operations.counted():
        for _ in range(STEPS + 1):
            server.executor.turn()
            server.step()
    assert server.scheduler.stats()["plans"] >= STEPS
    return operations.count


def test_a_turn_and_a_plan_do_not_look_at_instances_that_wait() -> None:
    few, many = _operations_of_a_generation(FEW), _operations_of_a_generation(MANY)
    assert few > 1000
    assert many < 1.02 * few, (few, many)


def _operations_of_timers(idle: int) -> int:
    operations = Operations()

    async def run() -> None:
        timers = Timers(trio.current_time)
        for _ in range(idle):
            timers.call_later(3600, lambda: None)
        fired: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            await trio.testing.wait_all_tasks_blocked()
            with operations.counted():
                for number in range(STEPS):
                    timers.call_later(0.001, lambda n=number: fired.append(n))  # type: ignore[misc]
                    await trio.sleep(0.01)
            assert fired == list(range(STEPS))
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    return operations.count


def test_a_timer_does_not_look_at_those_of_instances_that_wait() -> None:
    few, many = _operations_of_timers(FEW), _operations_of_timers(MANY)
    assert few > 1000
    assert many < 1.05 * few, (few, many)
