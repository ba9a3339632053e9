"""The event loop of the control process: from its start to its end by a signal or by its parent."""

from __future__ import annotations

import signal
import sys
from threading import Event
from typing import Any

import trio

from pie_control.scheduler.worker_process import WorkerProcess
from pie_py.config.child import configured, report_ready


async def run(
    given: dict[str, Any], with_parent: bool, worker: WorkerProcess | None, ready: Event
) -> None:
    """Serves with what is given of a configuration, and with the first worker if it runs already,
    until it is stopped. Sets `ready` when it serves.
    """
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        nursery.start_soon(_stop_on_signal, stop, ready, nursery.cancel_scope)
        if with_parent:
            nursery.start_soon(_stop_with_parent, nursery.cancel_scope)

        async def until_stopped(task_status: trio.TaskStatus[str]) -> None:
            config = configured(given)
            from pie_control.server import serve

            await serve(config, stop, worker, task_status=task_status)
            nursery.cancel_scope.cancel()

        endpoint = await nursery.start(until_stopped)
        report_ready(endpoint)
        ready.set()


async def _stop_on_signal(stop: trio.Event, ready: Event, scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set() or not ready.is_set():  # a model may take minutes to load
                scope.cancel()
                return
            stop.set()


async def _stop_with_parent(scope: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(sys.stdin)
    scope.cancel()
