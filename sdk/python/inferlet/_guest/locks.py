"""Locks of a program with one thread: they work, and waiting for one is an error.

The locks of the C library would sleep in WASI, which is not there.
"""

from __future__ import annotations

_DEADLOCK = (
    "this lock is held, and an inferlet has one thread: waiting for it would never end"
    " (tasks wait for each other with asyncio.Lock)"
)


class Lock:
    """Stands for `threading.Lock`."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock. A held one: RuntimeError if asked to wait forever, else False."""
        if not self._held:
            self._held = True
            return True
        if blocking and timeout < 0:
            raise RuntimeError(_DEADLOCK)
        return False

    def release(self) -> None:
        """Gives the lock back."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def locked(self) -> bool:
        """True if it is held."""
        return self._held

    acquire_lock = acquire
    release_lock = release
    locked_lock = locked

    def _at_fork_reinit(self) -> None:
        self._held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
