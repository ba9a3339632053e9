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
from simulated_gpu.tensors import CUDA, Devices, GpuTensor, off_the_device, simulation

device = simulation.device
_late = random.Random(0)


class Event:
    """A point in a stream. Who looks may find it not reached yet, a few times."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._looks = 0
        self._time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._looks = _late.choice((0, 0, 1, 3))
        self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def query(self) -> bool:
        assert device.graph is None, "an event is looked at while a graph is recorded"
        self._looks -= 1
        return self._looks < 0

    def synchronize(self) -> None:
        assert device.graph is None, "an event is waited for while a graph is recorded"
        self._looks = 0

    def elapsed_time(self, end: Event) -> float:
        return (end._time - self._time) * 1e3


class Stream:
    """A stream: what is given to it is done at once."""

    device = CUDA

    def __init__(self, *_: Any, **__: Any) -> None:
        """One as good as any other."""

    def wait_stream(self, other: Stream) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class CUDAGraph:
    """Operations that were recorded."""

    def __init__(self) -> None:
        self.recording: list[Recorded] = []

    def replay(self) -> None:
        with off_the_device():
            device.replay(self.recording)


@contextmanager
def _graph(graph: CUDAGraph, *_: Any, **__: Any) -> Iterator[None]:
    device.graph = graph.recording
    try:
        yield
    finally:
        device.graph = None


@contextmanager
def _nothing(*_: Any) -> Iterator[None]:
    yield


def _synchronize(number: object = None) -> None:
    assert device.graph is None, "synchronize: not permitted when stream is capturing"


def _pin(tensor: torch.Tensor, *_: Any) -> torch.Tensor:
    assert not isinstance(tensor, GpuTensor), "only memory of the host can be pinned"
    return simulation.pin(tensor.clone())


class _Generator(torch.Generator):
    """Numbers are drawn on the host."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # of a class in C


# Views of what is on the device have no history to keep.
_modes: list[Any] = [torch.inference_mode(), simulation, Devices()]


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
        "synchronize": _synchronize,
        "current_stream": Stream,
        "stream": _nothing,
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
    torch.Generator = _Generator  # type: ignore[misc]
    torch.version.cuda = "13.0"
