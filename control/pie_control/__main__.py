"""`python -m pie_control --config JSON`: the control process, as the command line starts it."""

from __future__ import annotations

import gc
import signal
import sys
from typing import Any

import trio

from pie_control import process
from pie_control.worker.process import start_worker
from pie_py.config.child import (
    allow_open_files,
    configured,
    read_arguments,
    report_error,
    report_ready,
)


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    After a first signal its instances have `stop_seconds` to end, a second one ends them at once.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    gc.disable()  # until it serves: nothing of what is imported is ever freed
    process.set_up_memory()
    allow_open_files()
    given, with_parent = read_arguments("pie_control")
    ready = trio.Event()
    try:
        trio.run(_run, given, with_parent, ready)
    except Exception as error:  # what the server's tasks raise comes in groups
        import structlog

        log = structlog.get_logger("pie.server")
        report_error(str(_first(error)))
        if ready.is_set():  # the parent reads no more, and it is a fault of ours
            log.error("the server has failed", exc_info=True)
        else:
            log.debug("cannot serve", exc_info=True)
        return 1
    return 0


async def _run(given: dict[str, Any], with_parent: bool, ready: trio.Event) -> None:
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        nursery.start_soon(_stop_on_signal, stop, nursery.cancel_scope)
        if with_parent:
            nursery.start_soon(_stop_with_parent, nursery.cancel_scope)

        async def run(task_status: trio.TaskStatus[str]) -> None:
            # It takes longest to start: its libraries are loaded while those of this process are.
            worker = await start_worker(given)
            try:
                config = configured(given)
                from pie_control.server import serve

                await serve(config, stop, worker, task_status=task_status)
            finally:
                if worker is not None:
                    worker.close()
            nursery.cancel_scope.cancel()

        endpoint = await nursery.start(run)
        report_ready(endpoint)
        ready.set()


async def _stop_on_signal(stop: trio.Event, scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                scope.cancel()
                return
            stop.set()


async def _stop_with_parent(scope: trio.CancelScope) -> None:
    await trio.lowlevel.wait_readable(sys.stdin)
    scope.cancel()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
