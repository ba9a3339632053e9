"""The pages of its memory that every guest of a component writes to, copied ahead of its first
turn.

A guest's memory is the component's image until it writes: then the system copies the page. Alone,
a copy is a page fault of 2 to 6 µs on the thread of the guests, twice that where the page was read
before. Asked for together, before the guest has run, a copy takes 1.8 µs, on whatever thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from struct import Struct

import numpy as np
import structlog
from numpy.typing import NDArray

from pie_control.wasm import symbols

log = structlog.get_logger("pie.wasm")

LOOKED_AT = 8  # guests, from which is learned what all write to
_PAGE = mmap.PAGESIZE
_PRESENT, _OF_A_FILE = np.uint64(1 << 63), np.uint64(1 << 61)  # in `/proc/self/pagemap`
_MOST_PARTS = os.sysconf("SC_IOV_MAX")
_MEMORY = Struct("=QIxxxxIxxxx")
_write_own_memory = ctypes.CDLL(None, use_errno=True).process_vm_writev
_write_own_memory.restype = ctypes.c_ssize_t
_write_own_memory.argtypes = [
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_ulong),
    *(ctypes.c_void_p, ctypes.c_ulong),
    ctypes.c_ulong,
]


class WrittenPages:
    """Learns from a component's first guests which pages they write to; copies those of later ones.

    Looks and copies of one guest must not happen at once; those of several may.
    """

    def __init__(self, instance: int) -> None:
        """Takes which of the component's core instances has the memory, counted from 0.

        It must be right: Wasmtime ends the process otherwise.
        """
        self._instance = symbols.FIRST_INSTANCE + instance
        self._writers: NDArray[np.intp] | None = None  # of each page, among the guests looked at
        self._guests = 0
        self._pages: NDArray[np.uint64] | None = None  # offsets of those that most write to

    @property
    def count(self) -> int:
        """Pages that are copied ahead; 0 before enough guests have ended."""
        return 0 if self._pages is None else len(self._pages)

    def look(self, context: int, store: int) -> None:
        """Looks at the memory of a guest that has come to its end and still has its memory."""
        if self._pages is not None:
            return
        start, size = self._memory(context, store)
        try:
            with open("/proc/self/pagemap", "rb", buffering=0) as pages:
                facts = os.pread(pages.fileno(), size // _PAGE * 8, start // _PAGE * 8)
        except OSError as error:
            self._give_up(error)
            return
        found = np.frombuffer(facts, np.uint64)
        written = (found & (_PRESENT | _OF_A_FILE)) == _PRESENT
        writers = np.zeros(len(written), np.intp)
        if self._writers is not None:
            count = min(len(writers), len(self._writers))
            writers[:count] = self._writers[:count]
        self._writers = writers + written
        self._guests += 1
        if self._guests == LOOKED_AT:
            often = np.flatnonzero(self._writers > LOOKED_AT // 2)[:_MOST_PARTS]
            self._pages = often.astype(np.uint64) * np.uint64(_PAGE)

    def copy(self, context: int, store: int) -> None:
        """Copies the pages of a guest that is instantiated, and does not run meanwhile."""
        pages = self._pages
        if pages is None or not len(pages):
            return
        start, size = self._memory(context, store)
        pages = pages[: int(np.searchsorted(pages, size))]
        # A byte of each is written over itself.
        parts = np.ones((len(pages), 2), np.uint64)  # address and length
        parts[:, 0] = pages + np.uint64(start)
        place = parts.ctypes.data, len(parts)
        if _write_own_memory(os.getpid(), *place, *place, 0) != len(parts):
            self._give_up(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))

    def _memory(self, context: int, store: int) -> tuple[int, int]:
        """Address and bytes."""
        memory = ctypes.create_string_buffer(_MEMORY.pack(store, self._instance, 0))
        address = ctypes.addressof(memory)
        return symbols.memory_data(context, address), symbols.memory_bytes(context, address)

    def _give_up(self, error: OSError) -> None:
        log.warning("pages of guests are not copied ahead", reason=str(error))
        self._pages = np.zeros(0, np.uint64)
