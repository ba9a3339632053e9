"""Observers of both processes (`pie_py.config.plugins`) that keep a clock of stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pie_py.config.plugins import Process


@contextmanager
def stages(process: Process, folder: Path, messages: Any) -> Iterator[None]:
    """Keeps a clock of the process's stages and writes it as `PROCESS.json`."""
    if process == "control":
        from benchmarks.tracing.control import control_clock

        clock = control_clock()
    else:
        from benchmarks.tracing.worker import worker_clock

        clock = worker_clock()
    with clock.writing(folder / f"{process}.json"):
        yield


@contextmanager
def kernels(process: Process, folder: Path, messages: Any) -> Iterator[None]:
    """As `stages` in the worker, with PyTorch's operators as another stage; slows the others."""
    if process == "control":
        yield
        return
    from benchmarks.tracing.worker import Kernels, worker_clock

    clock = worker_clock()
    with clock.writing(folder / "worker.json"), Kernels(clock):
        yield
