"""`python -m pie_control --config JSON`: the control process, as the command line starts it."""

from __future__ import annotations

import gc
import sys
from threading import Event

from pie_control.scheduler.worker_process import WorkerProcess, start_worker
from pie_py.config.child import allow_open_files, first_error, read_arguments, report_error
from pie_py.config.platform import c_function

_ARENAS = 2  # instead of eight for each core: the work is one thread's
_FREE_BYTES = 256 << 20  # free at the end of the heap, until the next trim
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # glibc's malloc.h
_PR_SET_THP_DISABLE = 41  # Linux's prctl.h


def set_up_memory() -> None:
    """Has memory of this process go back to the system. Call it before the threads start.

    Nothing uses some of the memory that the C library holds. glibc's allocator has several arenas,
    and returns only what is free at an arena's end. After a flood of requests the process would
    stay at its largest size.

    Large blocks are the other way round: each is mapped and given back by itself, so that the
    system makes all its pages again for the next one. A guest's call with 2 MB of bytes takes
    120 MB for a moment, one value a byte, and half of its time was the making of pages, in which no
    other guest runs. So free pages stay until the next trim.

    Pages of two megabytes, which some systems give to all processes, would hide how much memory
    guests take: this process has none.
    """
    if (mallopt := c_function("mallopt")) is not None:  # glibc has it
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
    if (prctl := c_function("prctl")) is not None:
        prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    After a first signal its instances have `stop_seconds` to end, a second one ends them at once.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    gc.disable()  # until it serves: nothing of what is imported is ever freed
    set_up_memory()
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
