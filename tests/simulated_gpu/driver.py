"""Stands in for `torch.cuda`: streams, events, graphs, memory."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from simulated_gpu.device import MEMORY, Recorded
from simulated_gpu.order import Line, Stamp
from simulated_gpu.tensors import CUDA, Devices, GpuTensor, off_the_device, simulation

device = simulation.device
_late = random.Random(0)


class Event:
    """A point in a stream. Who looks may find it not reached yet, a few times."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._seen: dict[int, int] = {}
        self._stamp: Stamp | None = None
        self._looks = 0
        self._timed = enable_timing
        self._time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        line = device.current if stream is None else stream.line
        line.after_line(device.host)
        self._stamp = line.event()
        self._seen = dict(line.seen)
        self._looks = _late.choice((0, 0, 1, 3))
        self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        (device.current if stream is None else stream.line).after(self._seen)

    @property
    def _reached(self) -> bool:
        """Whether the host knows that it has been."""
        return self._stamp is None or device.host.knows(self._stamp)

    def query(self) -> bool:
        if device.graph is not None:
            raise RuntimeError("an event is looked at while a graph is recorded")
        if not self._reached and self._looks:
            self._looks -= 1
            return False
        device.host.after(self._seen)
        return True

    def synchronize(self) -> None:
        if device.graph is not None:
            raise RuntimeError("an event is waited for while a graph is recorded")
        device.host.after(self._seen)

    def elapsed_time(self, end: Event) -> float:
        if not (self._timed and end._timed):
            raise RuntimeError("both events must be created with enable_timing")
        if not (self._reached and end._reached):
            raise RuntimeError("CUDA error: device not ready")
        return (end._time - self._time) * 1e3


class Stream:
    """A stream of its own."""

    def __init__(self, on: Any = None, line: Line | None = None, **_: Any) -> None:
        self.line = line or device.line()
        self.device = CUDA

    def wait_stream(self, other: Stream) -> None:
        other.line.after_line(device.host)
        self.line.after_line(other.line)

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.line is self.line

    def __hash__(self) -> int:
        return hash(self.line)


@contextmanager
def _stream(stream: Stream | None) -> Iterator[None]:
    before = device.current
    device.current = before if stream is None else stream.line
    try:
        yield
    finally:
        device.current = before


class CUDAGraph:
    """Operations that were recorded."""

    def __init__(self) -> None:
        self.recording: list[Recorded] = []

    def replay(self) -> None:
        with off_the_device():
            device.replay(self.recording)


@contextmanager
def _graph(
    graph: CUDAGraph, pool: Any = None, stream: Stream | None = None, **_: Any
) -> Iterator[None]:
    device.synchronize()
    with _stream(stream or Stream()):
        device.graph = graph.recording
        try:
            yield
        finally:
            device.graph = None


@contextmanager
def _nothing(*_: Any) -> Iterator[None]:
    yield


def _numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
    simulation.host_reads(tensor)
    return _real_numpy(tensor, force=force)


def _pin(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    if isinstance(tensor, GpuTensor):
        raise RuntimeError("cannot pin 'cuda' memory, only dense CPU tensors can be pinned")
    return simulation.pin(tensor.clone())


class _Generator(torch.Generator):
    """Numbers are drawn on the host."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # of a class in C


# Views of what is on the device have no history to keep.
_modes: list[Any] = [torch.inference_mode(), simulation, Devices()]
_real_numpy = torch.Tensor.numpy


def install() -> None:
    """Makes PyTorch in this process see one GPU, the simulated one. In this thread only it is
    one.
    """
    for mode in _modes:
        mode.__enter__()
    torch.set_num_threads(1)  # what it computes is small
    cuda: Any = torch.cuda
    cuda._lazy_init = lambda: None
    stand_ins = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda number: None,
        "get_device_capability": lambda number=None: (9, 0),
        "get_device_properties": lambda number=None: SimpleNamespace(multi_processor_count=132),
        "get_device_name": lambda number=None: "a simulated GPU",
        "mem_get_info": lambda number=None: (MEMORY - device.used, MEMORY),
        "empty_cache": gc.collect,
        "synchronize": lambda number=None: device.synchronize(),
        "current_stream": lambda number=None: Stream(line=device.current),
        "stream": _stream,
        "device": _nothing,
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": _graph,
        "graph_pool_handle": lambda: (0, 1),
    }
    for name, stand_in in stand_ins.items():
        setattr(cuda, name, stand_in)
    tensor: Any = torch.Tensor
    tensor.pin_memory = _pin
    tensor.numpy = _numpy
    torch.Generator = _Generator  # type: ignore[misc]
    torch.version.cuda = "13.0"
