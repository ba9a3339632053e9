"""One of the processes: does jobs that come on its standard input, until that is closed.

Both ends speak msgpack with the length before it, so nothing that a job may have broken in here can
run in the control process.
"""

from __future__ import annotations

import importlib
import math
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgpack
import psutil

from pie_control.errors import ApiError, ProgramRejected

NICENESS = 3  # the model and the guests go first
STACK_BYTES = 8 << 20
_GROWN_BYTES = 256 << 20  # of a process that is replaced after its job
LENGTH_BYTES = 4
START_SECONDS = 60.0  # of the CPU, for what is loaded before a job
_seconds: float | None = None  # of the CPU, that the job may take


def main() -> None:
    """Serves the control process."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the control process ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_STACK, STACK_BYTES)
    # Not the address space: Wasmtime reserves far more of it than it uses.
    _lower(resource.RLIMIT_DATA, int(os.environ["PIE_PY_CONFINED_BYTES"]))
    while (request := _read(requests)) is not None:
        answer = _answer(*msgpack.unpackb(request))
        _lower(resource.RLIMIT_CPU, resource.RLIM_INFINITY)
        data = msgpack.packb((*answer, _resident() > _GROWN_BYTES))
        answers.write(len(data).to_bytes(LENGTH_BYTES))
        answers.write(data)
        answers.flush()


@contextmanager
def uncharged() -> Iterator[None]:
    """Within, a process of the pool loads what jobs share: no job's seconds pay for that."""
    _limit_cpu(START_SECONDS)
    yield
    _limit_cpu(_seconds)


def _answer(module: str, name: str, arguments: list[Any], seconds: float) -> tuple[str, Any]:
    """The value that a job has returned, or the kind and the text of its error."""
    global _seconds
    _seconds = seconds
    try:
        with uncharged():
            function = getattr(importlib.import_module(module), name)
        return "ok", function(*arguments)
    except ApiError as error:
        return error.code, error.message
    except ProgramRejected as error:
        return "rejected", str(error)
    except (RecursionError, MemoryError):
        return "memory", ""
    except BaseException as error:  # noqa: BLE001  a panic in a library of Rust's is no Exception
        return "internal", f"{type(error).__name__}: {error}"


def _limit_cpu(seconds: float | None) -> None:
    """The kernel ends this process when so much more is used, if it is one of the pool's."""
    if _seconds is None or seconds is None:
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + seconds))


def _resident() -> int:
    """Bytes of memory in use now: the allocator does not give all back."""
    return int(psutil.Process().memory_info().rss)


def _lower(what: int, size: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard != resource.RLIM_INFINITY and (size == resource.RLIM_INFINITY or size > hard):
        size = hard
    resource.setrlimit(what, (size, hard))


def _read(file: BinaryIO) -> bytes | None:
    head = file.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    return file.read(int.from_bytes(head))


if __name__ == "__main__":
    sys.exit("this is run by pie_control.confined.pool")
