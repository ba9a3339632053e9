"""Keeps a record of where the control thread's time goes, or of what it calls, for benchmarks.

`pie_py.wire.trace` says how: functions are put around those that make the stages, from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import trio

from pie_control.api.signatures import SIGNATURES
from pie_control.wasm import HostFunction, symbols
from pie_py.config.server import TraceConfig
from pie_py.wire.plan import Plan, PlanResult
from pie_py.wire.trace import StageClock, Tap, recording, tokens_of

IDLE = "idle"  # the thread sleeps in the event loop
REST = "event loop and clients"
HOST = "host function"  # and its name

_LINK = "pie_control.worker.link.WorkerLink"
_SCHEDULER = "pie_control.scheduler.scheduler.Scheduler"
ORDER = Tap("message: encode and send", _LINK, "order")
ON_RESULT = Tap("resume: turns of guests", "pie_control.worker.pacing.Dispatcher", "on_result")
DRAIN = Tap("reply: receive and decode", _LINK, "_drain")
TAPS = (
    Tap("Wasm", "pie_control.wasm.symbols", "future_poll"),
    Tap("scheduler: commands in", _SCHEDULER, "enqueue"),
    Tap("scheduler: commands in", _SCHEDULER, "synchronize"),
    Tap("scheduler: plans out", _SCHEDULER, "next_plan"),
    Tap("scheduler: results in", _SCHEDULER, "complete"),
    Tap("resume: turns of guests", "pie_control.instances.turns.Executor", "turn"),
    Tap("resume: answers of wait", "pie_control.wasm.linker.Pending", "finish"),
    ORDER,
    DRAIN,
    ON_RESULT,
)


def tracing(config: TraceConfig | None) -> AbstractContextManager[None]:
    """Within it, a record is kept if one is wanted, and written at the end."""
    return recording(config, "control", lambda counter: _on_sent(counter.mark), _clock)


def _clock() -> StageClock:
    host = [f"{HOST} {name}" for functions in SIGNATURES.values() for name in functions]
    clock = StageClock([IDLE, *host, *(tap.stage for tap in TAPS)], REST)
    _tap(clock)
    trio.lowlevel.add_instrument(_Idle(clock))
    return clock


def _tap(clock: StageClock) -> None:
    for tap in TAPS:
        tap.replace(partial(clock.timed, tap.stage))
    _tap_host_functions(clock)
    drained_at = 0

    def drain(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(link: Any) -> None:
            nonlocal drained_at
            drained_at = clock.since
            function(link)

        return run

    def on_result(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(dispatcher: Any, result: PlanResult) -> None:
            clock.mark("taken", result.id, at=drained_at)
            function(dispatcher, result)

        return run

    DRAIN.replace(drain)
    ON_RESULT.replace(on_result)
    _on_sent(lambda plan, tokens: clock.mark("sent", plan, tokens))


def _tap_host_functions(clock: StageClock) -> None:
    """Puts the clock around the callbacks that C calls, arguments and results included."""
    stage = ""

    def link(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(linker: Any, host_function: HostFunction) -> Any:
            nonlocal stage
            stage = f"{HOST} {host_function.name}"
            return function(linker, host_function)

        return run

    for name in ("_callback", "_async_callback"):
        Tap(HOST, "pie_control.wasm.linker.Linker", name).replace(link)
    for name in ("HostCall", "AsyncHostCall"):
        tap = Tap(HOST, symbols.__name__, name)
        tap.replace(lambda make: lambda function: make(clock.timed(stage, function)))


def _on_sent(mark: Callable[[int, int], None]) -> None:
    """Calls back after every plan sent: its number, and how many tokens have been asked for so far."""
    tokens = 0

    def order(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(link: Any, message: Any) -> None:
            nonlocal tokens
            function(link, message)
            if isinstance(message, Plan):
                tokens += tokens_of(message)
                mark(message.id, tokens)

        return run

    ORDER.replace(order)


class _Idle(trio.abc.Instrument):
    """Tells the clock when the event loop sleeps."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock
        self._idle = clock.stages.index(IDLE)
        self._rest = clock.stages.index(REST)

    def before_io_wait(self, timeout: float) -> None:
        self._clock.enter(self._idle)

    def after_io_wait(self, timeout: float) -> None:
        self._clock.enter(self._rest)
