"""The simulated GPU: its memory, what is recorded of it, what made the host wait."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MEMORY = 3 << 30  # bytes


class Buffer:
    """Memory that was allocated at once."""

    def __init__(self, device: Device, size: int) -> None:
        self.recorded = device.graph is not None  # then it lives as long as the graph
        self.plan: Any = None  # of FlashInfer's, if it is a workspace
        device.used += size
        weakref.finalize(self, device.free, size)


@dataclass
class Recorded:
    """An operation of a graph."""

    name: str
    memory: Sequence[Callable[[], Buffer | None]]
    again: Callable[[], object]


class Device:
    """All that the simulated `torch.cuda` is about."""

    def __init__(self) -> None:
        self.graph: list[Recorded] | None = None  # that is being recorded
        self.used = 0  # bytes
        self.asked: list[str] = []  # what made the host wait
        self.launches = 0

    def allocate(self, size: int) -> Buffer:
        """Takes memory.

        Raises:
            torch.OutOfMemoryError: if there is not so much.
        """
        if self.used + size > MEMORY:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes: {MEMORY - self.used} are free"
            )
        return Buffer(self, size)

    def free(self, size: int) -> None:
        """Memory has come back."""
        self.used -= size

    def launch(self, name: str, memory: Sequence[Buffer], again: Callable[[], object]) -> None:
        """Notes an operation on some memory that has been carried out; `again` does it again."""
        self.launches += 1
        if self.graph is not None:
            handles = [
                functools.partial(_itself, b) if b.recorded else weakref.ref(b) for b in memory
            ]
            self.graph.append(Recorded(name, handles, again))

    def replay(self, graph: list[Recorded]) -> None:
        """Carries out a graph's operations once more."""
        for operation in graph:
            is_there = all(of() for of in operation.memory)
            assert is_there, f"{operation.name} of a graph: memory freed"
            operation.again()

    def ask(self, why: str) -> None:
        """The host waits for the device."""
        if self.graph is not None:
            raise RuntimeError(f"{why}: operation not permitted when stream is capturing")
        self.asked.append(why)


def _itself(buffer: Buffer) -> Buffer:
    return buffer
