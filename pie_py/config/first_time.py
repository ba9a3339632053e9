"""What is done once on a machine, and takes long: logged, and told to waiting users."""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger("pie.worker.load")

# Of a worker that loads its models.
listeners: list[Callable[[str], object]] = []


def first_time(text: str) -> None:
    """Says what is done now, such as "compiling the kernel (once, about 5 s)"."""
    log.info(text)
    for listener in listeners:
        listener(text)
