"""`python -m pie_control --config JSON`: the control process, as the command line starts it."""

from __future__ import annotations

import gc
import sys
from threading import Event

from pie_control import process
from pie_control.scheduler.worker_process import WorkerProcess, start_worker
from pie_py.config.child import allow_open_files, first_error, read_arguments, report_error


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    After a first signal its instances have `stop_seconds` to end, a second one ends them at once.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    gc.disable()  # until it serves: nothing of what is imported is ever freed
    process.set_up_memory()
    allow_open_files()
    given, with_parent = read_arguments("pie_control")
    worker: WorkerProcess | None = None
    ready = Event()
    try:
        # It takes longest to start: its libraries are loaded while those of this process are.
        worker = start_worker(given)
        import trio

        from pie_control.running import run

        trio.run(run, given, with_parent, worker, ready)
    except Exception as error:  # what the server's tasks raise comes in groups
        import structlog

        log = structlog.get_logger("pie.server")
        report_error(str(first_error(error)))
        if ready.is_set():  # the parent reads no more, and it is a fault of ours
            log.error("the server has failed", exc_info=True)
        else:
            log.debug("cannot serve", exc_info=True)
        return 1
    finally:
        if worker is not None:
            worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
