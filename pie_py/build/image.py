"""The memory image inside a component that componentize-py has made.

componentize-py runs CPython until the program is imported, and writes the memory that CPython
then has into a core module, as data segments. What is changed there holds in every instance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from mmap import mmap
from struct import Struct
from typing import TypeAlias

Data: TypeAlias = bytes | bytearray | mmap

_MAGIC = b"\0asm"
_HEADER = 8  # bytes of magic number and version
CUSTOM, CORE_MODULE, _DATA = 0, 1, 11  # sections: of both, of a component, of a core module
_CORE_INSTANCE, _COMPONENT, _MEMORY = 2, 4, 5  # two of a component, one of a core module
_I32_CONST, _END = 0x41, 0x0B

_LISTED = b"\0\1immortal list:"
_HEAD = Struct("<II")  # numbers that follow; the count of an object that is immortal
_OBJECT = Struct("<II")  # how every object begins: count and type

# Of objects that have died since they were listed, the allocator has made something else: at their
# count stands the address of the next free block, or 0. No address is as low.
_LOWEST_ADDRESS = 1 << 18


class Image:
    """Words of the memory by address, in the bytes of the component, which they change in place."""

    def __init__(self, component: bytes) -> None:
        """Takes the largest core module's data. Raises `ValueError` if there is none."""
        self.component = bytearray(component)
        modules = [
            (start, end)
            for kind, start, end in sections(self.component, 0, len(component))
            if kind == CORE_MODULE
        ]
        if not modules:
            raise ValueError("the component has no core module")
        start, end = max(modules, key=lambda module: module[1] - module[0])
        segments = [
            segment
            for kind, first, last in sections(self.component, start, end)
            if kind == _DATA
            for segment in _segments(self.component, first)
        ]
        segments.sort()
        self._addresses = [address for address, _, _ in segments]
        self._segments = segments

    def find(self, address: int) -> int | None:
        """Where a word lies in the component; None if it lies in no segment."""
        index = bisect_right(self._addresses, address) - 1
        if index < 0:
            return None
        first, offset, size = self._segments[index]
        inside = address - first
        return offset + inside if inside + 4 <= size else None


def memory_instance(data: Data) -> int:
    """Which of a component's core instances has the memory, counted as they are made, from 0.
    Raises `ValueError` if not exactly one has a memory of its own, or that can't be told.
    """
    has_memory: list[bool] = []
    made: list[int] = []  # the module of each
    for kind, start, end in sections(data, 0, len(data)):
        if kind == CORE_MODULE:
            inner = sections(data, start, end)
            has_memory.append(any(kind == _MEMORY and data[first] for kind, first, _ in inner))
        elif kind == _CORE_INSTANCE:
            made += _instantiated(data, start)
        elif kind == _COMPONENT:
            inner = sections(data, start, end)
            if any(kind in (CORE_MODULE, _CORE_INSTANCE, _COMPONENT) for kind, _, _ in inner):
                raise ValueError("a component within the component may have core instances")
    found = [number for number, module in enumerate(made) if has_memory[module]]
    if len(found) != 1:
        raise ValueError(f"{len(found)} core instances have a memory; one is expected")
    return found[0]


def _instantiated(data: Data, position: int) -> Iterator[int]:
    """The core modules that a section of core instances instantiates."""
    count, position = read_leb(data, position)
    for _ in range(count):
        from_exports, position = data[position], position + 1
        if not from_exports:
            module, position = read_leb(data, position)
            yield module
        parts, position = read_leb(data, position)
        for _ in range(parts):
            length, position = read_leb(data, position)
            position += length + 1  # the name, and what kind of thing it is
            _, position = read_leb(data, position)


def sections(data: Data, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Kind, start and end of each section of a component or core module."""
    if data[start : start + 4] != _MAGIC:
        raise ValueError("not WebAssembly")
    position = start + _HEADER
    while position < end:
        kind = data[position]
        size, position = read_leb(data, position + 1)
        yield kind, position, position + size
        position += size


def _segments(data: Data, position: int) -> Iterator[tuple[int, int, int]]:
    """Address, offset in the file, and size of each active data segment at a constant address."""
    count, position = read_leb(data, position)
    for _ in range(count):
        flags, position = read_leb(data, position)
        if flags == 2:
            _, position = read_leb(data, position)
        if flags == 1 or data[position] != _I32_CONST:
            raise ValueError("the memory image is not of constant addresses")
        address, position = _signed(data, position + 1)
        if data[position] != _END:
            raise ValueError("the memory image is not of constant addresses")
        size, position = read_leb(data, position + 1)
        yield address & 0xFFFFFFFF, position, size
        position += size


def read_leb(data: Data, position: int) -> tuple[int, int]:
    """An unsigned LEB128 number and the index after it."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return result, position


def _signed(data: Data, position: int) -> tuple[int, int]:
    start = position
    result, position = read_leb(data, position)
    bits = 7 * (position - start)
    return result - (1 << bits) if result >> (bits - 1) else result, position


def make_immortal(component: bytes) -> bytes:
    """The component with all objects immortal that it lists, so that instances share their pages.

    CPython writes the reference count of an object that it only looks at, unless the object is
    immortal (PEP 683), which an object is whose count is large enough. `inferlet._guest.image`
    lists the objects that there are. Raises `ValueError` if there is no list.
    """
    image = Image(component)
    data = image.component
    start = data.find(_LISTED)
    if start < 0:
        raise ValueError("the component does not list its objects")
    start += len(_LISTED)
    count, immortal = _HEAD.unpack_from(data, start)
    start += _HEAD.size
    end = start + 4 * count
    for address, kind in _OBJECT.iter_unpack(bytes(data[start:end])):
        place = image.find(address)
        if place is None:
            continue
        references, found_kind = _OBJECT.unpack_from(data, place)
        if found_kind == kind and 0 < references < _LOWEST_ADDRESS:
            _OBJECT.pack_into(data, place, immortal, kind)
    data[start:end] = bytes(end - start)
    return bytes(data)
