"""The thread that frees what ended guests have written."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from pie_control.wasm import symbols

MOST_WAITING = 32  # stores
_LOOK_SECONDS = 0.0002


class Reaper:
    """Deletes stores beside the thread that runs guests: to give megabytes back takes a millisecond.

    A store may be deleted on any thread once its guest's stack is gone.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._waiting: set[int] = set()  # stores that are not deleted yet
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Stores that still take a guest's place."""
        return len(self._waiting)

    def bury(self, store: int) -> None:
        """Deletes a store: soon, or at once if too many wait already."""
        if self._stopped or len(self._waiting) >= MOST_WAITING:
            symbols.store_delete(store)
            return
        self._waiting.add(store)
        self._queue.put(store)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wasm-reaper", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Waits until all are deleted."""
        while self._waiting:
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Ends the thread once nothing waits."""
        self._stopped = True
        self._queue.put(None)

    def _run(self) -> None:
        while (store := self._queue.get()) is not None:
            symbols.store_delete_aside(store)
            self._waiting.discard(store)
