"""Results that a device still computes when their handler returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from numpy.typing import NDArray

from pie_inference.device.fence import passed

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
        """Whether `get` would not wait."""
        return self._event is None or passed(self._event)

    def get(self) -> T:
        """The value."""
        if self._event is not None:
            self._event.synchronize()
        return self._make([tensor.numpy() for tensor in self._tensors])

    def then(self, change: Callable[[T], U]) -> DeviceFuture[U]:
        """What another function makes of the value."""
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
