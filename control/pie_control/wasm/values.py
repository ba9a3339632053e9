"""Values between Python and Wasmtime's memory, by functions made once for each type.

A value is a 32-byte slot: its kind, and at byte 8 its payload. Arguments, and the items of a list
or a tuple, are slots one after the other. A writer takes a slot's address and a Python value; the
slot must not own anything before. When a writer raises, the slot is still valid: freeing it frees
what was written.

A host call's price is mostly that of looking at memory. So the slots of a call or a tuple are read
by one `struct`, and numbers in lists by one more, or by a strided NumPy view if they are many.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from ctypes import memset
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pie_control.errors import exceeded
from pie_control.wasm import symbols
from pie_control.wasm.symbols import PAYLOAD, VALUE_SIZE, Columns, getter, setter
from pie_control.wasm.types import (
    BOOL,
    F32,
    F64,
    S32,
    U8,
    U32,
    U64,
    Array,
    Bytes,
    Enum,
    List,
    Scalar,
    String,
    Tuple,
    Type,
)

Reader: TypeAlias = Callable[[int], tuple[Any, ...]]
Writer: TypeAlias = Callable[[int, Any], None]
_SpanReader: TypeAlias = Callable[[int, int], Any]  # of how many items, and their address

_STRING, _LIST, _TUPLE, _ENUM, _RESULT = 12, 13, 15, 17, 19

# kind, and the character that means the same to `struct` and to NumPy
_SCALARS: dict[Scalar, tuple[int, str]] = {
    BOOL: (0, "?"),
    U8: (2, "B"),
    S32: (5, "i"),
    U32: (6, "I"),
    U64: (8, "Q"),
    F32: (9, "f"),
    F64: (10, "d"),
}
# A guest can make a million items at once. Reading them takes seconds, in which no other guest
# runs.
MOST_ITEMS = 4096  # of a list of anything but numbers that a guest passes
MOST_TEXT = 8 << 20  # bytes of a string that a guest passes
_SHORT = 24  # lists up to this length are for `struct`, which starts faster than NumPy
_SPAN = "8xQQ8x"  # a slot with a string, an enum, a list or a tuple: size, address

_get_span = getter("8xQQ")
_get_outcome = getter("8x?7xQ")
_set_kind = setter("B")
_set_empty = setter("B7xQQ")
_set_outcome = setter("B7x?7xQ")
_kinds = Columns(np.uint8, VALUE_SIZE)
_numbers = {scalar: Columns(np.dtype(char), VALUE_SIZE) for scalar, (_, char) in _SCALARS.items()}


def _slot_layout(of: Scalar) -> str:
    char = _SCALARS[of][1]
    return f"{char}{VALUE_SIZE - PAYLOAD - struct.calcsize(char)}x"


# Reading


def reader(types: Sequence[Type]) -> Reader:
    """A reader of values of these types, in slots one after the other, as a tuple."""
    if not types:
        return lambda slot: ()  # there is no slot
    parts = [f"{PAYLOAD}x{_slot_layout(of)}" if isinstance(of, Scalar) else _SPAN for of in types]
    get = getter("".join(parts))
    spans = {
        f"read{n}": _span_reader(of) for n, of in enumerate(types) if not isinstance(of, Scalar)
    }
    if not spans:
        return get
    # Written out for these types: a loop over them would take as long as all the reading.
    fields, values = "", ""
    for n, of in enumerate(types):
        if isinstance(of, Scalar):
            fields += f"value{n}, "
            values += f"value{n}, "
        else:
            fields += f"size{n}, data{n}, "
            values += f"read{n}(size{n}, data{n}), "
    made: dict[str, Any] = {"get": get, **spans}
    exec(f"def read(slot):\n    {fields} = get(slot)\n    return {values}", made)
    read: Reader = made["read"]
    return read


def _span_reader(of: Type) -> _SpanReader:
    match of:
        case String() | Enum():
            return _read_text
        case Bytes():
            return lambda size, data: _numbers[U8].at(data + PAYLOAD, size).tobytes()
        case Array(element):
            columns = _numbers[element]
            return lambda size, data: columns.at(data + PAYLOAD, size).copy()
        case List(Scalar() as element):
            return _numbers_reader(element)
        case List(element):
            return _list_reader(element)
        case Tuple(elements):
            read = reader(elements)
            return lambda size, data: read(data)
    raise TypeError(f"{of!r} is no type of the contract")


def _read_text(size: int, data: int) -> str:
    if size > MOST_TEXT:
        raise exceeded(f"a text of {size} bytes; {MOST_TEXT} at most")
    return ctypes.string_at(data, size).decode() if size else ""


def read_string(slot: int) -> str:
    """Reads a string or the name of an enum's case."""
    return _read_text(*_get_span(slot))


def _numbers_reader(element: Scalar) -> _SpanReader:
    columns = _numbers[element]
    one = f"{PAYLOAD}x{_slot_layout(element)}"
    short = [getter(one * count) for count in range(_SHORT + 1)]

    def read(size: int, data: int) -> list[Any]:
        if size <= _SHORT:
            return list(short[size](data)) if size else []
        numbers: list[Any] = columns.at(data + PAYLOAD, size).tolist()
        return numbers

    return read


def _list_reader(element: Type) -> _SpanReader:
    read_item = reader((element,))

    def read(size: int, data: int) -> list[Any]:
        if size > MOST_ITEMS:
            raise exceeded(f"a list of {size} items; {MOST_ITEMS} at most")
        return [read_item(at)[0] for at in range(data, data + size * VALUE_SIZE, VALUE_SIZE)]

    return read


# Writing


def writer(of: Type) -> Writer:
    """A writer of values of a type."""
    match of:
        case Scalar():
            return _scalar_writer(of)
        case String():
            return write_string
        case Enum():
            return _write_enum
        case Bytes():
            return _write_bytes
        case Array(element) | List(Scalar() as element):
            return _numbers_writer(element)
        case List(element):
            return _list_writer(writer(element))
        case Tuple(elements):
            return _tuple_writer(elements)
    raise TypeError(f"{of!r} is no type of the contract")


def _scalar_writer(of: Scalar) -> Writer:
    kind, char = _SCALARS[of]
    put = setter(f"B7x{char}")

    def write(slot: int, value: Any) -> None:
        put(slot, kind, value)

    return write


def write_string(slot: int, value: str) -> None:
    """Writes a string."""
    data = value.encode()
    symbols.bytes_new(slot + PAYLOAD, len(data), data)
    _set_kind(slot, _STRING)


def _write_enum(slot: int, value: str) -> None:
    write_string(slot, value)
    _set_kind(slot, _ENUM)


def _write_bytes(slot: int, value: bytes) -> None:
    _write_octets(slot, np.frombuffer(value, np.uint8))


def _numbers_writer(element: Scalar) -> Writer:
    kind, _ = _SCALARS[element]
    dtype = _numbers[element].dtype
    write_many = _many_writer(element)
    short = [setter(f"B7x{_slot_layout(element)}" * count) for count in range(_SHORT + 1)]

    def write(slot: int, value: Any) -> None:
        count = len(value)
        if not count:
            _set_empty(slot, _LIST, 0, 0)
        elif count > _SHORT:
            write_many(slot, _as_array(value, dtype))
        else:
            if isinstance(value, np.ndarray):
                value = _as_array(value, dtype).tolist()
            fields = [kind] * (2 * count)
            fields[1::2] = value
            data = _new_items(slot, count, _LIST)
            short[count](data, *fields)

    return write


def _as_array(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        array: npt.NDArray[Any] = value.astype(dtype, casting="same_kind", copy=False)
        return array
    return np.array(value, dtype)


def _many_writer(element: Scalar) -> Callable[[int, npt.NDArray[Any]], None]:
    kind, columns = _SCALARS[element][0], _numbers[element]

    def write_many(slot: int, numbers: npt.NDArray[Any]) -> None:
        count = len(numbers)
        if not count:
            _set_empty(slot, _LIST, 0, 0)
            return
        data = _new_items(slot, count, _LIST)
        _kinds.at(data, count)[:] = kind
        columns.at(data + PAYLOAD, count)[:] = numbers

    return write_many


def _new_items(slot: int, count: int, kind: int) -> int:
    """Makes the slot own `count` slots, whose content is still to be written; their address."""
    (symbols.list_new if kind == _LIST else symbols.tuple_new)(slot + PAYLOAD, count)
    _set_kind(slot, kind)
    data: int = _get_span(slot)[1]
    return data


_write_octets = _many_writer(U8)


def _list_writer(write_item: Writer) -> Writer:
    def write(slot: int, value: Sequence[Any]) -> None:
        if not value:
            _set_empty(slot, _LIST, 0, 0)
            return
        at = _new_items(slot, len(value), _LIST)
        memset(at, 0, len(value) * VALUE_SIZE)  # a zeroed slot is valid: `false`
        for item in value:
            write_item(at, item)
            at += VALUE_SIZE

    return write


def _tuple_writer(elements: Sequence[Type]) -> Writer:
    layout = ""
    blank: list[int] = []  # fields with nothing in them: zeros, and empty lists
    numbers: list[tuple[int, int]] = []  # index of an element, of its field
    others: list[tuple[int, int, Writer]] = []  # index of an element, its offset, what writes it
    for n, element in enumerate(elements):
        if isinstance(element, Scalar):
            layout += f"B7x{_slot_layout(element)}"
            blank += [_SCALARS[element][0], 0]
            numbers.append((n, len(blank) - 1))
        else:
            layout += "B7xQQ8x"
            blank += [_LIST, 0, 0]
            others.append((n, n * VALUE_SIZE, writer(element)))
    put = setter(layout)

    def write(slot: int, value: Sequence[Any]) -> None:
        if len(value) != len(elements):
            raise ValueError(f"{len(value)} values for a tuple of {len(elements)}")
        fields = blank[:]
        for n, field in numbers:
            fields[field] = value[n]
        data = _new_items(slot, len(elements), _TUPLE)
        put(data, *fields)
        for n, offset, write_other in others:
            write_other(data + offset, value[n])

    return write


# Results


class Scratch:
    """A slot of our own, where a value is written before it moves into a result."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_uint64 * (VALUE_SIZE // 8))()
        self.slot = ctypes.addressof(self._memory)

    def clear(self) -> None:
        """Frees what a writer that raised has left."""
        symbols.val_delete(self.slot)
        memset(self.slot, 0, VALUE_SIZE)


def result_writer(ok: Type | None, scratch: Scratch) -> Writer:
    """A writer of the `ok` case of a `result<T, string>`."""
    if ok is None:
        return lambda slot, value: _set_outcome(slot, _RESULT, True, 0)
    write_value, own, box = writer(ok), scratch.slot, symbols.val_new

    def write(slot: int, value: Any) -> None:
        try:
            write_value(own, value)
        except BaseException:
            scratch.clear()
            raise
        _set_outcome(slot, _RESULT, True, box(own))  # moves the value

    return write


def write_failure(slot: int, text: str, scratch: Scratch) -> None:
    """Writes the `err` case of a `result<_, string>`."""
    write_string(scratch.slot, text.encode(errors="replace").decode())
    _set_outcome(slot, _RESULT, False, symbols.val_new(scratch.slot))


def read_outcome(slot: int) -> tuple[bool, str]:
    """Reads a `result<string, string>`."""
    is_ok, value = _get_outcome(slot)
    return is_ok, read_string(value)
