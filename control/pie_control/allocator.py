"""Memory that the C library keeps although nothing uses it goes back to the system.

The allocator of glibc has several arenas, and returns only what is free at an arena's end. After a
flood of requests the process would keep its largest size.
"""

from __future__ import annotations

import ctypes
import sys

import trio

TRIM_SECONDS = 20.0
_ARENAS = 2  # instead of eight for each core: the work is one thread's
_M_ARENA_MAX = -8  # glibc's malloc.h

_glibc = ctypes.CDLL(None) if sys.platform == "linux" else None
_has_trim = hasattr(_glibc, "malloc_trim")  # another C library has its own ways


def limit_arenas() -> None:
    """Call it before the threads start."""
    if _has_trim:
        assert _glibc is not None
        _glibc.mallopt(_M_ARENA_MAX, _ARENAS)


def trim() -> None:
    """Gives back what is free, whole pages of it. Blocking: some milliseconds a gigabyte."""
    if _has_trim:
        assert _glibc is not None
        _glibc.malloc_trim(0)


async def trim_now_and_then() -> None:
    """Trims until cancelled."""
    while True:
        await trio.sleep(TRIM_SECONDS)
        await trio.to_thread.run_sync(trim)
