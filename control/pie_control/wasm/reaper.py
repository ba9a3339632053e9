"""The thread that frees what ended guests have written."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from pie_control.wasm import symbols

MOST_WAITING = 32  # stores


class _Remains:
    """A store to delete, and what must outlive it."""

    __slots__ = ("owners", "store")

    def __init__(self, store: int, owners: object) -> None:
        self.store = store
        self.owners = owners


class Reaper:
    """Deletes stores beside the thread that runs guests: to give megabytes back takes a
    millisecond.

    A store may be deleted on any thread once its guest's stack is gone.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Remains | threading.Event | None] = SimpleQueue()
        # Not by address: the next store may lie where one was deleted before the thread could say
        # so.
        self._waiting: set[_Remains] = set()
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Stores that still take a guest's place."""
        return len(self._waiting)

    def bury(self, store: int, owners: object) -> None:
        """Deletes a store soon, or at once if too many wait; its owners live until then."""
        if self._stopped or len(self._waiting) >= MOST_WAITING:
            symbols.store_delete(store)
            return
        remains = _Remains(store, owners)
        self._waiting.add(remains)
        self._queue.put(remains)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wasm-reaper", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Waits until all are deleted."""
        if self._thread is None:
            return
        if self._stopped:
            self._thread.join()
            return
        done = threading.Event()
        self._queue.put(done)
        done.wait()

    def stop(self) -> None:
        """Ends the thread once nothing waits."""
        self._stopped = True
        self._queue.put(None)

    def _run(self) -> None:
        while self._delete_next():
            pass

    def _delete_next(self) -> bool:
        """Waits for the next; holds nothing while it waits, so that an engine can end."""
        remains = self._queue.get()
        if remains is None:
            return False
        if isinstance(remains, threading.Event):
            remains.set()
            return True
        symbols.store_delete_aside(remains.store)
        self._waiting.discard(remains)
        return True
