"""Answers of slow host functions: a thread computes them while the guest stays suspended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from pie_control.errors import ApiError
from pie_control.instances.instance import Instance, State
from pie_control.instances.roles import Turns


class ThreadAnswers:
    """Resumes guests with what threads have computed for them. `run` must run before the first."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carries the work until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def start(self, instance: Instance, work: Callable[[], Any]) -> None:
        """Does the work in a thread and answers the guest, which its host function suspends now.

        An ApiError is the guest's error; any other exception becomes one with the code `internal`.
        """
        assert self._nursery is not None, "the answers run"
        self._nursery.start_soon(self._answer, instance, work)

    async def _answer(self, instance: Instance, work: Callable[[], Any]) -> None:
        try:
            answer: Any = await trio.to_thread.run_sync(work)
        except ApiError as error:
            answer = error
        except Exception as error:
            answer = ApiError("internal", f"{type(error).__name__}: {error}")
        if instance.state is State.RUNNING:
            self._turns.answer(instance, answer)
