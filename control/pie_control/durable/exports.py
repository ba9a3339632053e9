"""Calls of durable instances about saved contexts: each life saves its own again, from the tokens
that it knows, and opens those of others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pie_control.api.binder import queue_of
from pie_control.durable.waits import Call, durable_of, error_of, note_answer, noted, until
from pie_control.errors import ApiError
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.turns import Executor
from pie_control.timers import Timers
from pie_control.wasm.linker import SUSPENDED, HostFunction

TRIES, TRY_SECONDS = 100, 0.1  # for a context that another durable instance saves again
DONE = {  # errors of a second life, in which it is as it was wanted
    "allocate.export-kvpage": "already-exists",
    "allocate.release-export": "not-found",
    "allocate.expire-export": "not-found",
}


class ExportCalls:
    """Makes the functions of the trait `allocate` that share pages with others."""

    def __init__(self, executor: Executor, timers: Timers) -> None:
        self._executor = executor
        self._timers = timers

    def taps(self) -> dict[str, Callable[[HostFunction], Call]]:
        """The functions that make each of them."""
        return dict.fromkeys((*DONE, "allocate.import-kvpage"), self._tap)

    def _tap(self, function: HostFunction) -> Call:
        name, real = function.full_name, function.call
        done = DONE.get(name)

        def again(instance: Instance, *args: Any) -> Any:
            try:
                return real(instance, *args)
            except ApiError as error:
                if error.code == done:
                    return None
                if error.code == "busy":  # commands that were done long ago are under way now
                    return _when_synchronized(instance, args[0], partial(again, instance, *args))
                if error.code == "not-found" and done is None:
                    self._await(instance, partial(real, instance, *args), TRIES)
                    return SUSPENDED
                raise durable_of(instance).departs(name, why=f"it fails now: {error}") from None

        def call(instance: Instance, *args: Any) -> Any:
            before = durable_of(instance).next_call(name)
            if before is not None:
                if not before.ok:
                    raise error_of(before.value)
                return again(instance, *args)
            return noted(partial(note_answer, instance, name, None), real, instance, *args)

        return call

    def _await(self, instance: Instance, real: Callable[[], Any], tries: int) -> None:
        """Opens a saved context as soon as it is there again."""
        guest = instance.guest

        def look() -> None:
            if instance.guest is not guest:
                return
            try:
                value = real()
            except ApiError as error:
                if error.code == "not-found" and tries > 1:
                    self._await(instance, real, tries - 1)
                    return
                why = f"the saved context is gone, and nobody has saved it again: {error}"
                value = durable_of(instance).departs("allocate.import-kvpage", why=why)
            if instance.guest is guest:
                self._executor.answer(instance, value)

        self._timers.call_later(TRY_SECONDS, look)


def _when_synchronized(instance: Instance, queue: int, make: Callable[[], Any]) -> Any:
    target = queue_of(instance, queue)
    future = instance.futures.create(FutureKind.DONE)
    target.scheduler.synchronize(target.queue, future)

    def made() -> Any:
        instance.futures.cancel(future.handle)
        return make()

    return until(instance, [future.handle], made)
