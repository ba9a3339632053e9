"""Where all ranks of a worker find each other."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]

PATIENCE = timedelta(minutes=10)  # for another rank: loading takes minutes


class Meeting:
    """A file of the machine that all are on, `file://PATH`, or a port of the first one's."""

    def __init__(self, place: str) -> None:
        """The file does not exist yet; the port is one that the first rank has opened."""
        self.place = place
        self._opened: Store | None = None

    @classmethod
    def open(cls, address: str) -> Meeting:
        """Opens a free port at an address of this machine, and at no other."""
        listener = socket.create_server((address, 0))
        port = listener.getsockname()[1]
        meeting = cls(f"tcp://{address}:{port}")
        meeting._opened = TCPStore(
            address,
            port,
            is_master=True,
            timeout=PATIENCE,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return meeting

    def store(self, size: int) -> Store:
        """What so many ranks find each other by."""
        if self._opened is not None:
            return self._opened
        if self.place.startswith("file://"):
            return FileStore(self.place.removeprefix("file://"), size)
        address, _, port = self.place.removeprefix("tcp://").rpartition(":")
        return TCPStore(address, int(port), timeout=PATIENCE)
