"""The stages of the control process's thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import trio

from benchmarks.tracing.clock import StageClock, Tap
from pie_control.instances.turns import Executor
from pie_control.scheduler import link
from pie_control.scheduler.dispatcher import Dispatcher
from pie_control.scheduler.link import WorkerLink
from pie_control.scheduler.scheduler import Scheduler
from pie_control.wasm import HostFunction, linker, symbols
from pie_py.bench.observed import after_plans_sent, replace
from pie_py.wire.plan import PlanResult

IDLE = "idle"  # the thread sleeps in the event loop
REST = "event loop and clients"
HOST = "host function "  # and its name
ARGUMENTS = f"{HOST}arguments and results"  # of all host functions

TAPS = (
    Tap("Wasm", symbols, "future_poll"),
    Tap("scheduler: commands in", Scheduler, "enqueue"),
    Tap("scheduler: commands in", Scheduler, "synchronize"),
    Tap("scheduler: plans out", Scheduler, "next_plan"),
    Tap("message: encode and send", WorkerLink, "order"),
    Tap("reply: decode", link, "decode"),
    Tap("scheduler: results in", Scheduler, "complete"),
    Tap("resume: turns of guests", Executor, "turn"),
    Tap("resume: turns of guests", Dispatcher, "on_results"),
    Tap("resume: answers of wait", linker.PendingCall, "finish"),
)


def control_clock() -> StageClock:
    """A clock of this process's stages, which runs from now on."""
    clock = StageClock(REST)
    for tap in TAPS:
        tap.time(clock)
    _time_host_functions(clock)
    _mark_answers(clock)
    after_plans_sent(WorkerLink, lambda plan, tokens: clock.mark("sent", plan, tokens))
    trio.lowlevel.add_instrument(_Idle(clock))
    return clock


def _mark_answers(clock: StageClock) -> None:
    """Marks each answer as taken when its decoding began."""
    arrived = 0

    def decode(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(frame: Any) -> Any:
            nonlocal arrived
            arrived = perf_counter_ns()
            return function(frame)

        return run

    def on_results(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(dispatcher: Any, results: list[PlanResult]) -> None:
            clock.mark("taken", results[-1].id, at=arrived)
            function(dispatcher, results)

        return run

    replace(link, "decode", decode)
    replace(Dispatcher, "on_results", on_results)


def _time_host_functions(clock: StageClock) -> None:
    """Gives each host function a stage, and the reading of arguments and writing of results one."""

    def linked(make: Callable[..., Any]) -> Callable[..., Any]:
        def run(own: Any, functions: Sequence[HostFunction]) -> None:
            make(
                own,
                [
                    dataclasses.replace(one, call=clock.timed(HOST + one.name, one.call))
                    for one in functions
                ],
            )

        return run

    replace(linker.Linker, "define", linked)
    for name in ("reader", "writer", "result_writer"):
        replace(linker, name, lambda make: lambda *given: clock.timed(ARGUMENTS, make(*given)))


class _Idle(trio.abc.Instrument):
    """Tells the clock when the event loop sleeps."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._idle = clock.number(IDLE)
        self._rest = clock.number(REST)

    def before_io_wait(self, timeout: float) -> None:
        self._clock.enter(self._idle)

    def after_io_wait(self, timeout: float) -> None:
        self._clock.enter(self._rest)
