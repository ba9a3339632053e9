"""The pages of its memory that every guest of a component uses, there ahead of its first turn:
those that it writes to are copied, those that it only reads are mapped.

A guest's memory is the component's image until it writes: then the system copies the page. Alone,
a copy is a page fault of 2 to 6 µs on the thread of the guests, twice that where the page was read
before. Asked for together, before the guest has run, a copy takes 1.8 µs, on whatever thread. A
page of the image that is read for the first time is a page fault, too, and maps those around it.
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
from pie_py.config.platform import c_function

log = structlog.get_logger("pie.wasm")

LOOKED_AT = 8  # guests, from which is learned what all write to
_PAGE = mmap.PAGESIZE
AROUND = (64 << 10) // _PAGE  # pages that the system maps at once; it is the kernel's usual setting
_PRESENT, _OF_A_FILE = np.uint64(1 << 63), np.uint64(1 << 61)  # in `/proc/self/pagemap`
_MOST_PARTS = os.sysconf("SC_IOV_MAX")
_MEMORY = Struct("=QIxxxxIxxxx")
_write_own_memory = c_function("process_vm_writev")  # none on other systems than Linux
_read_own_memory = c_function("process_vm_readv")
for _access in filter(None, (_write_own_memory, _read_own_memory)):
    _access.restype = ctypes.c_ssize_t
    _access.argtypes = [
        ctypes.c_int,
        *(ctypes.c_void_p, ctypes.c_ulong),
        *(ctypes.c_void_p, ctypes.c_ulong),
        ctypes.c_ulong,
    ]


class WrittenPages:
    """Learns from a component's first guests which pages they use; has those of later ones ready.

    Looks and copies of one guest must not happen at once; those of several may.
    """

    def __init__(self, instance: int) -> None:
        """Takes which of the component's core instances has the memory, counted from 0.

        It must be right: Wasmtime ends the process otherwise.
        """
        self._instance = symbols.FIRST_INSTANCE + instance
        # Of each page, among the guests looked at: how many have written to it, only read it.
        self._users = np.zeros((2, 0), np.intp)
        self._guests = 0
        self._pages: NDArray[np.uint64] | None = None  # offsets of those that most write to
        if _write_own_memory is None:
            self._pages = np.zeros(0, np.uint64)
        self._read = np.zeros(0, np.uint64)  # likewise, of one page in each group that most read

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
        found = np.frombuffer(facts, np.uint64) & (_PRESENT | _OF_A_FILE)
        users = np.stack([found == _PRESENT, found == _PRESENT | _OF_A_FILE]).astype(np.intp)
        count = min(users.shape[1], self._users.shape[1])
        users[:, :count] += self._users[:, :count]
        self._users = users
        self._guests += 1
        if self._guests == LOOKED_AT:
            written, read = (np.flatnonzero(of > LOOKED_AT // 2) for of in users)
            _, firsts = np.unique(read // AROUND, return_index=True)
            self._pages, self._read = _offsets(written), _offsets(read[firsts])

    def copy(self, context: int, store: int) -> None:
        """Copies the pages of a guest that is instantiated, and does not run meanwhile, and maps
        those that it reads."""
        if self._pages is None or not len(self._pages):
            return
        memory = self._memory(context, store)
        # A byte of each is written over itself, or read. A page is copied sooner if it is not read
        # before.
        written, read = _parts(self._pages, *memory), _parts(self._read, *memory)
        place = written.ctypes.data, len(written)
        count = _write_own_memory(os.getpid(), *place, *place, 0)
        into = np.empty(len(read), np.uint8)
        target = np.array([[into.ctypes.data, len(into)]], np.uint64)
        count += _read_own_memory(
            os.getpid(), target.ctypes.data, 1, read.ctypes.data, len(read), 0
        )
        if count != len(written) + len(read):
            self._give_up(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))

    def _memory(self, context: int, store: int) -> tuple[int, int]:
        """Address and bytes."""
        memory = ctypes.create_string_buffer(_MEMORY.pack(store, self._instance, 0))
        address = ctypes.addressof(memory)
        return symbols.memory_data(context, address), symbols.memory_bytes(context, address)

    def _give_up(self, error: OSError) -> None:
        log.warning("pages of guests are not copied ahead", reason=str(error))
        self._pages = np.zeros(0, np.uint64)


def _offsets(pages: NDArray[np.intp]) -> NDArray[np.uint64]:
    return pages[:_MOST_PARTS].astype(np.uint64) * np.uint64(_PAGE)


def _parts(offsets: NDArray[np.uint64], start: int, size: int) -> NDArray[np.uint64]:
    """Address and length of one byte of each page within a memory."""
    offsets = offsets[: int(np.searchsorted(offsets, size))]
    parts = np.ones((len(offsets), 2), np.uint64)
    parts[:, 0] = offsets + np.uint64(start)
    return parts
