"""The simulated GPU: its streams, its memory, what runs on it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from simulated_gpu.order import WHOLE, Hazard, Line, Span, Uses

MEMORY = 3 << 30  # bytes


class Buffer:
    """Memory that was allocated at once."""

    def __init__(self, device: Device, what: str, size: int) -> None:
        self.uses = Uses(what)
        self.size = size  # bytes of the device; 0 if it is pinned memory of the host
        self.lent: set[int] = set()  # streams that the allocator was told of, beside its own
        self.born = device.current
        self.recorded = device.graph is not None
        self._device = device
        self.plan: Any = None  # of FlashInfer's, if it is a workspace

    def read(self, why: str) -> None:
        """The current stream reads it."""
        self.uses.read(self._device.current, self._device.current.event(), why)

    def __del__(self) -> None:
        device = self._device
        device.used -= self.size
        if not self.size or self.recorded:
            # pinned memory is kept until its copies are done, a graph's own as long as the graph
            return
        if self.uses.lines() - self.lent - {self.born.number}:
            late = self.uses.pending(self.born)
            if late is not None:
                device.problems.append(f"{self.uses.what} is freed while {late} uses it")


@dataclass
class Recorded:
    """An operation of a graph."""

    name: str
    reads: list[Callable[[], Buffer | None]]
    writes: list[Callable[[], Buffer | None]]
    again: Callable[[], object]
    host: Span


class Device:
    """All that the simulated `torch.cuda` is about."""

    def __init__(self) -> None:
        self.host = Line("the host")
        self.default = Line("the default stream")
        self.lines = [self.default]
        self.current = self.default
        self.graph: list[Recorded] | None = None  # that is being recorded
        self.used = 0  # bytes
        self.asked: list[str] = []  # what made the host wait
        self.problems: list[str] = []  # hazards that nobody could be told of
        self.launches = 0

    def line(self) -> Line:
        """A new stream."""
        line = Line(f"stream {len(self.lines)}")
        self.lines.append(line)
        return line

    def allocate(self, what: str, size: int) -> Buffer:
        """Takes memory.

        Raises:
            torch.OutOfMemoryError: if there is not so much.
        """
        if self.used + size > MEMORY:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes: {MEMORY - self.used} are free"
            )
        self.used += size
        return Buffer(self, what, size)

    def launch(
        self,
        name: str,
        reads: Sequence[Buffer],
        writes: Sequence[Buffer],
        again: Callable[[], object],
        host: Span = WHOLE,
    ) -> None:
        """Notes an operation that has been carried out: on the current stream, after what the host
        did.

        Args:
            name: of it.
            reads: memory that it reads.
            writes: memory that it writes.
            again: does it once more.
            host: the part of pinned memory that it uses, if it does.
        """
        self.check()
        self.launches += 1
        if self.graph is not None:
            self.graph.append(Recorded(name, _handles(reads), _handles(writes), again, host))
        else:
            self._use(name, reads, writes, host)

    def _use(
        self, name: str, reads: Iterable[Buffer], writes: Iterable[Buffer], host: Span
    ) -> None:
        line = self.current
        line.after_line(self.host)
        stamp = line.event()
        targets = list({id(b): b for b in writes}.values())
        for buffer in {id(b): b for b in reads}.values():
            if buffer not in targets:
                buffer.uses.read(line, stamp, name, WHOLE if buffer.size else host)
        for buffer in targets:
            buffer.uses.write(line, stamp, name, WHOLE if buffer.size else host)

    def replay(self, graph: list[Recorded]) -> None:
        """Carries out a graph's operations once more."""
        for operation in graph:
            reads, writes = (_alive(of) for of in (operation.reads, operation.writes))
            if reads is None or writes is None:
                raise Hazard(f"a graph's {operation.name} uses memory that has been freed")
            operation.again()
            self._use(operation.name, reads, writes, operation.host)

    def ask(self, why: str) -> None:
        """The host waits for all that the current stream has been given."""
        if self.graph is not None:
            raise RuntimeError(f"{why}: operation not permitted when stream is capturing")
        self.asked.append(why)
        self.host.after_line(self.current)

    def synchronize(self) -> None:
        """The host waits for everything."""
        if self.graph is not None:
            raise RuntimeError("synchronize: operation not permitted when stream is capturing")
        for line in self.lines:
            self.host.after_line(line)
        self.check()

    def check(self) -> None:
        """Raises `Hazard` for what was found where nothing could be raised."""
        if self.problems:
            problems, self.problems = self.problems, []
            raise Hazard("; ".join(problems))


def _alive(handles: Sequence[Callable[[], Buffer | None]]) -> list[Buffer] | None:
    """The memory behind handles, or None if some has been freed."""
    found = [buffer for handle in handles if (buffer := handle()) is not None]
    return found if len(found) == len(handles) else None


def _handles(buffers: Sequence[Buffer]) -> list[Callable[[], Buffer | None]]:
    """Memory that a graph uses: its own lives as long as it does, other memory may be freed."""
    return [functools.partial(_itself, b) if b.recorded else weakref.ref(b) for b in buffers]


def _itself(buffer: Buffer) -> Buffer:
    return buffer
