"""Tensors on a device, and order between it and the host: uploads, fences, futures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, reduce
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

LINE = 64  # bytes of a CPU's cache

# Arrays on the host, by the kind of their numbers.
Int64: TypeAlias = NDArray[np.int64]
Int32: TypeAlias = NDArray[np.int32]
Bool: TypeAlias = NDArray[np.bool_]


def current(device: torch.device) -> AbstractContextManager[object]:
    """Within it a GPU is the current one.

    PyTorch's operations go to where their tensors lie; kernels of FlashInfer's and Triton's,
    streams and events go to the current GPU.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of zeros. On a CPU its memory is taken page by page, when it is first written.

    `torch.zeros` would write all of it at once: gigabytes for a pool that may never fill. It begins
    with a cache line, so that a head's keys take no line more than they fill.
    """
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = np.zeros(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return torch.from_numpy(memory[first : first + size]).view(dtype).view(shape)


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor on a device; on the CPU its memory is shared.

    To a GPU it goes through pinned memory, in the order of the stream, and nothing waits: from
    pageable memory PyTorch would wait for all that the device has to do.
    """
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def pinned(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """An array as a tensor in memory that a GPU copies from; for the CPU it is shared."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory()


def upload_index(array: NDArray[np.integer[Any]], device: torch.device) -> torch.Tensor:
    """Indices as int64, as PyTorch wants them."""
    return upload(array.astype(np.int64), device)


def one_of_each(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Says if one row is true of each of some groups of rows, bool `[groups, n]` of `[rows, n]`.

    PyTorch's `any` along such an axis takes several times as long.
    """
    return reduce(torch.bitwise_or, x.reshape(groups, -1, x.shape[1]).unbind(1))


def passed(event: torch.cuda.Event) -> bool:
    """True if the device has reached an event."""
    return bool(event.query())  # type: ignore[no-untyped-call]


class Fence:
    """A point in a device's work for which the host can wait; nothing on the CPU."""

    def __init__(self, device: torch.device) -> None:
        """Makes a fence that has been passed."""
        self._device = device
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        """Puts the fence behind all that the current stream has been given."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Waits until the device has passed it."""
        if self._event is not None:
            self._event.synchronize()


T = TypeVar("T")
U = TypeVar("U")


class DeviceFuture(Generic[T]):
    """A value that is made on the host of tensors, once they are there.

    On a GPU they are copied to pinned memory on a stream of their own, while the device goes on
    with what comes next; only `get` waits. On the CPU they are there at once.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], make: Callable[[list[NDArray[Any]]], T]
    ) -> None:
        """Starts the copies. Nothing may write to the tensors afterwards."""
        self._make = make
        self._event: torch.cuda.Event | None = None
        self._tensors = list(tensors)
        if tensors and tensors[0].device.type == "cuda":
            self._tensors, self._event = _copied(tensors)

    @property
    def ready(self) -> bool:
        """True if `get` would not wait."""
        return self._event is None or passed(self._event)

    def get(self) -> T:
        """The value."""
        if self._event is not None:
            self._event.synchronize()
        return self._make([tensor.numpy() for tensor in self._tensors])

    def then(self, change: Callable[[T], U]) -> DeviceFuture[U]:
        """Another function's result for the value."""
        changed: DeviceFuture[U] = DeviceFuture((), lambda arrays: change(self._make(arrays)))
        changed._tensors, changed._event = self._tensors, self._event
        return changed


def completed(value: T) -> DeviceFuture[T]:
    """A value that is there already."""
    return DeviceFuture((), lambda arrays: value)


def _copied(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.cuda.Event]:
    device = tensors[0].device
    stream = copy_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    found = []
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(stream)
            found.append(host)
        event.record(stream)
    return found, event


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which a device's results are copied to the host."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
