"""Memory of this process that goes back to the system.

Nothing uses some of the memory that the C library holds. glibc's allocator has several arenas, and
returns only what is free at an arena's end. After a flood of requests the process would stay at its
largest size.

Large blocks are the other way round: each is mapped and given back by itself, so that the system
makes all its pages again for the next one. A guest's call with 2 MB of bytes takes 120 MB for a
moment, one value a byte, and half of its time was the making of pages, in which no other guest
runs. So free pages stay until the next trim.

Pages of two megabytes, which some systems give to all processes, would hide how much memory guests
take: this process has none.
"""

from __future__ import annotations

from pie_py.config.memory import trim
from pie_py.config.platform import c_function

_ARENAS = 2  # instead of eight for each core: the work is one thread's
_FREE_BYTES = 256 << 20  # free at the end of the heap, until the next trim
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # glibc's malloc.h
_PR_SET_THP_DISABLE = 41  # Linux's prctl.h


def set_up_memory() -> None:
    """Call it before the threads start."""
    if (mallopt := c_function("mallopt")) is not None:  # glibc has it
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
    if (prctl := c_function("prctl")) is not None:
        prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


async def trim_now_and_then() -> None:
    """Trims until cancelled."""
    import trio  # not yet when the worker is started

    while True:
        await trio.sleep(20.0)
        await trio.to_thread.run_sync(trim)
