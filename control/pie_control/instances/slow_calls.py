"""Slow host functions: what they return is computed in a task while the guest is suspended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from pie_control.errors import ApiError
from pie_control.instances.instance import Instance, InstanceState, Turns
from pie_control.tasks import Service


class SlowCalls(Service):
    """Resumes guests with what was computed for them."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._under_way: dict[Instance, trio.CancelScope] = {}

    def start(self, instance: Instance, work: Callable[[], Awaitable[Any]]) -> None:
        """Does the work and answers the guest, which its host function suspends now.

        An ApiError is the guest's error; any other exception becomes one with the code `internal`.
        """
        self._start_task(self._answer, instance, work)

    def drop_instance(self, instance: Instance) -> None:
        """Gives up what is computed for an instance that has ended."""
        scope = self._under_way.pop(instance, None)
        if scope is not None:
            scope.cancel()

    async def _answer(self, instance: Instance, work: Callable[[], Awaitable[Any]]) -> None:
        if instance.state is not InstanceState.RUNNING:
            return
        with trio.CancelScope() as scope:
            self._under_way[instance] = scope
            try:
                answer = await work()
            except ApiError as error:
                answer = error
            except Exception as error:
                answer = ApiError("internal", f"{type(error).__name__}: {error}")
            # A thread cannot be given up: its answer may come when the instance has ended.
            if self._under_way.pop(instance, None) is not None:
                self._turns.answer(instance, answer)
