"""Values between Python and Wasmtime's memory, by functions made once for each type.

A value is a 32-byte slot: its kind, and at byte 8 its payload. A reader takes a slot's address and
returns the Python value. A writer takes a slot's address and a Python value; the slot must not own
anything before. When a writer raises, the slot is still valid: freeing it frees what was written.

Lists are arrays of slots. Those of numbers are read and written as strided NumPy views, so that no
element costs a ctypes access.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import (
    Structure,
    c_bool,
    c_double,
    c_float,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
    memmove,
    memset,
    string_at,
)
from struct import Struct
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pie_control.wasm import symbols
from pie_control.wasm.symbols import PAYLOAD, VALUE_SIZE
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

Reader: TypeAlias = Callable[[int], Any]
Writer: TypeAlias = Callable[[int, Any], None]

_STRING, _LIST, _TUPLE, _ENUM, _RESULT = 12, 13, 15, 17, 19

# kind, C type and dtype of each scalar; `of` is a union, so every payload starts at the same byte
_SCALARS: dict[Scalar, tuple[int, Any, Any]] = {
    BOOL: (0, c_bool, np.bool_),
    U8: (2, c_uint8, np.uint8),
    S32: (5, c_int32, np.int32),
    U32: (6, c_uint32, np.uint32),
    U64: (8, c_uint64, np.uint64),
    F32: (9, c_float, np.float32),
    F64: (10, c_double, np.float64),
}

# Any stretch of memory, as a buffer; a ctypes type for each length would cost 20 µs.
_window: Callable[[int], Any] = (ctypes.c_char * (1 << 46)).from_address
_PACKED = "IifdB"  # dtype characters that mean the same to `struct`
_SHORT = 24  # lists up to this length are unpacked by `struct`, which starts faster than NumPy


class _Span(Structure):
    """Payload of strings, enums, lists and tuples."""

    _fields_ = (("kind", c_uint8), ("_", c_uint8 * 7), ("size", c_size_t), ("data", c_void_p))


class _Outcome(Structure):
    """Payload of a result."""

    _fields_ = (("kind", c_uint8), ("_", c_uint8 * 7), ("is_ok", c_bool), ("value", c_void_p))


def _slot_of(c_type: Any) -> Any:
    fields = (("kind", c_uint8), ("_", c_uint8 * 7), ("value", c_type))
    return type(f"_{c_type.__name__}", (Structure,), {"_fields_": fields})


_SLOTS = {scalar: _slot_of(c_type) for scalar, (_, c_type, _) in _SCALARS.items()}


def reader(of: Type) -> Reader:
    """What reads values of a type."""
    match of:
        case Scalar():
            return _scalar_reader(of)
        case String() | Enum():
            return read_string
        case Bytes():
            return _read_bytes
        case Array(element):
            return _array_reader(element)
        case List(Scalar() as element):
            return _numbers_reader(element)
        case List(element):
            return _list_reader(reader(element))
        case Tuple(elements):
            return _tuple_reader([reader(element) for element in elements])
    raise TypeError(f"{of!r} is no type of the contract")


def writer(of: Type) -> Writer:
    """What writes values of a type."""
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
            return _tuple_writer([writer(element) for element in elements])
    raise TypeError(f"{of!r} is no type of the contract")


# Scalars


def _scalar_reader(of: Scalar) -> Reader:
    at = _SLOTS[of].from_address

    def read(slot: int) -> Any:
        return at(slot).value

    return read


def _scalar_writer(of: Scalar) -> Writer:
    kind, _, dtype = _SCALARS[of]
    at = _SLOTS[of].from_address
    if np.issubdtype(dtype, np.integer):
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

        def write_integer(slot: int, value: Any) -> None:
            if not low <= value <= high:  # ctypes would wrap it around
                raise OverflowError(f"{value} does not fit in {of.wit}")
            target = at(slot)
            target.value = value
            target.kind = kind

        return write_integer

    def write(slot: int, value: Any) -> None:
        target = at(slot)
        target.value = value
        target.kind = kind

    return write


# Strings and bytes


def read_string(slot: int) -> str:
    """Reads a string or the name of an enum's case."""
    span = _Span.from_address(slot)
    return string_at(span.data, span.size).decode() if span.size else ""


def write_string(slot: int, value: str) -> None:
    """Writes a string."""
    data = value.encode()
    symbols.bytes_new(slot + PAYLOAD, len(data), data)
    c_uint8.from_address(slot).value = _STRING


def _write_enum(slot: int, value: str) -> None:
    write_string(slot, value)
    c_uint8.from_address(slot).value = _ENUM


def _read_bytes(slot: int) -> bytes:
    span = _Span.from_address(slot)
    count = span.size
    if not count:
        return b""
    window = _window(span.data)
    data: bytes = np.frombuffer(window, np.uint8, count * VALUE_SIZE)[PAYLOAD::VALUE_SIZE].tobytes()
    return data


def _write_bytes(slot: int, value: bytes) -> None:
    _write_numbers(slot, np.frombuffer(value, np.uint8), U8)


# Lists of numbers


def _array_reader(element: Scalar) -> Callable[[int], npt.NDArray[Any]]:
    dtype = np.dtype(_SCALARS[element][2])
    step, start = VALUE_SIZE // dtype.itemsize, PAYLOAD // dtype.itemsize

    def read(slot: int) -> npt.NDArray[Any]:
        span = _Span.from_address(slot)
        count = span.size
        if not count:
            return np.empty(0, dtype)
        window = _window(span.data)
        numbers: npt.NDArray[Any] = np.frombuffer(window, dtype, count * step)[start::step].copy()
        return numbers

    return read


def _numbers_reader(element: Scalar) -> Reader:
    read_array = _array_reader(element)
    dtype = np.dtype(_SCALARS[element][2])
    if dtype.char not in _PACKED:
        return lambda slot: read_array(slot).tolist()
    one = f"{PAYLOAD}x{dtype.char}{VALUE_SIZE - PAYLOAD - dtype.itemsize}x"
    short = [Struct("=" + one * count).unpack_from for count in range(_SHORT + 1)]

    def read(slot: int) -> list[Any]:
        span = _Span.from_address(slot)
        count = span.size
        if not count:
            return []
        if count <= _SHORT:
            return list(short[count](_window(span.data)))
        numbers: list[Any] = read_array(slot).tolist()
        return numbers

    return read


def _numbers_writer(element: Scalar) -> Writer:
    kind, _, scalar = _SCALARS[element]
    dtype = np.dtype(scalar)
    packed = dtype.char in _PACKED
    one = f"Q{dtype.char}{VALUE_SIZE - PAYLOAD - dtype.itemsize}x"
    short = [Struct("=" + one * count).pack for count in range(_SHORT + 1)] if packed else []

    def write(slot: int, value: Any) -> None:
        count = len(value)
        if count <= _SHORT and type(value) is np.ndarray and value.dtype == dtype:
            value = value.tolist()
        if packed and type(value) is list and 0 < count <= _SHORT:
            items = short[count](*[part for number in value for part in (kind, number)])
            symbols.list_new(slot + PAYLOAD, count)
            span = _Span.from_address(slot)
            memmove(span.data, items, count * VALUE_SIZE)
            span.kind = _LIST
            return
        if isinstance(value, np.ndarray):
            numbers = value.astype(dtype, casting="same_kind", copy=False)
        else:
            numbers = np.array(value, dtype)
        _write_numbers(slot, numbers, element)

    return write


def _write_numbers(slot: int, numbers: npt.NDArray[Any], element: Scalar) -> None:
    count = len(numbers)
    kind, _, _ = _SCALARS[element]
    data = _new_items(slot, count, _LIST)
    if not count:
        return
    size = numbers.itemsize
    window = _window(data)
    payloads = np.frombuffer(window, numbers.dtype, count * (VALUE_SIZE // size))
    payloads[PAYLOAD // size :: VALUE_SIZE // size] = numbers
    np.frombuffer(window, np.uint8, count * VALUE_SIZE)[::VALUE_SIZE] = kind


# Lists and tuples of anything


def _new_items(slot: int, count: int, kind: int) -> int:
    """Makes the slot own `count` zeroed slots (a zeroed slot is valid: `false`); their address."""
    (symbols.list_new if kind == _LIST else symbols.tuple_new)(slot + PAYLOAD, count)
    span = _Span.from_address(slot)
    data: int = span.data or 0
    memset(data, 0, count * VALUE_SIZE)
    span.kind = kind
    return data


def _list_reader(read_item: Reader) -> Reader:
    def read(slot: int) -> list[Any]:
        span = _Span.from_address(slot)
        count = span.size
        if not count:
            return []
        data: int = span.data
        return [read_item(at) for at in range(data, data + count * VALUE_SIZE, VALUE_SIZE)]

    return read


def _list_writer(write_item: Writer) -> Writer:
    def write(slot: int, value: Sequence[Any]) -> None:
        at = _new_items(slot, len(value), _LIST)
        for item in value:
            write_item(at, item)
            at += VALUE_SIZE

    return write


def _tuple_reader(readers: list[Reader]) -> Reader:
    def read(slot: int) -> tuple[Any, ...]:
        data: int = _Span.from_address(slot).data
        return tuple([read_item(data + VALUE_SIZE * n) for n, read_item in enumerate(readers)])

    return read


def _tuple_writer(writers: list[Writer]) -> Writer:
    def write(slot: int, value: Sequence[Any]) -> None:
        at = _new_items(slot, len(writers), _TUPLE)
        for write_item, item in zip(writers, value, strict=True):
            write_item(at, item)
            at += VALUE_SIZE

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
    """What writes the `ok` case of a `result<T, string>`."""
    at = _Outcome.from_address
    if ok is None:

        def write_empty(slot: int, value: Any) -> None:
            outcome = at(slot)
            outcome.is_ok = True
            outcome.value = None
            outcome.kind = _RESULT

        return write_empty

    write_value, own, box = writer(ok), scratch.slot, symbols.val_new

    def write(slot: int, value: Any) -> None:
        try:
            write_value(own, value)
        except BaseException:
            scratch.clear()
            raise
        outcome = at(slot)
        outcome.value = box(own)  # moves the value
        outcome.is_ok = True
        outcome.kind = _RESULT

    return write


def write_failure(slot: int, text: str, scratch: Scratch) -> None:
    """Writes the `err` case of a `result<_, string>`."""
    write_string(scratch.slot, text.encode(errors="replace").decode())
    outcome = _Outcome.from_address(slot)
    outcome.value = symbols.val_new(scratch.slot)
    outcome.is_ok = False
    outcome.kind = _RESULT


def read_outcome(slot: int) -> tuple[bool, str]:
    """Reads a `result<string, string>`."""
    outcome = _Outcome.from_address(slot)
    return outcome.is_ok, read_string(outcome.value)


def free(slot: int) -> None:
    """Frees what a slot owns."""
    symbols.val_delete(slot)
