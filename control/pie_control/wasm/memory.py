"""The process's memory by address, for `struct` and NumPy, without an object per access."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

# Offsets into it are addresses. It spans all that there can be; only what is there may be touched.
_MEMORY: Any = (ctypes.c_char * (1 << 62)).from_address(0)
_START = 32  # NumPy takes an array at address 0 for one that is yet to be allocated


def getter(layout: str) -> Callable[[int], tuple[Any, ...]]:
    """What reads the fields of a layout, in the words of `struct`, at an address."""
    return partial(Struct(f"={layout}").unpack_from, _MEMORY)


def setter(layout: str) -> Callable[..., None]:
    """What takes an address and the fields of a layout, and writes them there.

    It raises `struct.error` or OverflowError for a number that does not fit; what it covers then
    holds the fields before that one, and zeros.
    """
    return partial(Struct(f"={layout}").pack_into, _MEMORY)


class Columns:
    """Numbers of one dtype that lie `stride` bytes apart, as NumPy views."""

    def __init__(self, dtype: npt.DTypeLike, stride: int) -> None:
        self.dtype = np.dtype(dtype)
        size = self.dtype.itemsize
        self._all: npt.NDArray[Any] = np.frombuffer(_MEMORY, dtype, (1 << 61) // size, _START)
        self._size = size
        self._step = stride // size

    def at(self, address: int, count: int) -> npt.NDArray[Any]:
        """The `count` numbers from an address on, which is a multiple of their size."""
        first = (address - _START) // self._size
        return self._all[first : first + count * self._step : self._step]
