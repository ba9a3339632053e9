"""The component's memory, of which each instance gets a copy of the pages that it writes to.

CPython counts the references to an object in the object itself. An instance that only looks at an
object so writes to its page of memory, and the page is copied for it. The counts of immortal
objects (PEP 683) are not written; an object is immortal if its count is large enough, which the
build sees to in the image (`pie_py.build.image`) once this module has listed the objects.
"""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

# Backwards: so the mark itself stands in memory once, at the list.
_KRAM = b":tsil latrommi\1\0"

_listed: array[int]


def list_objects() -> None:
    """Leaves the addresses of all objects that count references in the memory.

    As 32-bit numbers: the mark, how many follow, and the count of an object that is immortal.
    """
    global _listed
    head = array("I", _KRAM[::-1])
    found = array("I", [*head, 0, sys.getrefcount(None)])
    for tracked in gc.get_objects():
        stack: list[Any] = [tracked]
        while stack:
            one = stack.pop()
            if not sys._is_immortal(one):  # type: ignore[attr-defined]
                found.extend((id(one), id(type(one))))
            stack.extend(part for part in _parts(one) if not gc.is_tracked(part))
    found[len(head)] = len(found) - len(head) - 2
    _listed = found


def _parts(one: Any) -> list[Any]:
    """The objects that one refers to; the collector does not look into code."""
    if isinstance(one, CodeType):
        names = (one.co_filename, one.co_name, one.co_qualname, one.co_names)
        return [*names, one.co_consts, one.co_linetable, one.co_exceptiontable]
    return gc.get_referents(one)


_ALIGNMENT = 8  # bytes: sizes of blocks are multiples of it
_MOST_BESIDE = 24  # bytes that an allocator adds to a block
_LARGEST_BLOCK = 512  # bytes: what is larger comes from the C library's allocator
_IN_ORDER = 8  # blocks one after the other, which shows that they are from a new pool

_filling: list[object] = []


def fill_gaps() -> None:
    """Takes the free blocks between objects, so that an instance's own objects lie together.

    Otherwise they would be made wherever the build left a gap, and each such page be copied.
    """
    _fill(object, sys.getsizeof(object()))
    _fill(lambda: float("0.5"), sys.getsizeof(0.5))
    for size in range(3 * _ALIGNMENT, _LARGEST_BLOCK + 1, _ALIGNMENT):
        _fill(partial(bytes, size - sys.getsizeof(b"")), size)


def _fill(make: Callable[[], object], size: int) -> None:
    last = in_order = 0
    blocks = []
    while in_order < _IN_ORDER:
        block = make()
        in_order = in_order + 1 if 0 < id(block) - last <= size + _MOST_BESIDE else 0
        last = id(block)
        blocks.append(block)
    _filling.extend(blocks[:-_IN_ORDER])
