"""Order between the host and a device."""

from __future__ import annotations

import torch


def passed(event: torch.cuda.Event) -> bool:
    """Whether the device has reached an event."""
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
