"""The bytes of `pie_py.wire.plan`'s messages between the control process and a worker.

A message is one ZeroMQ frame: the length of a msgpack header, the header, and the raw bytes of
every array that it names, one after the other, all in words of 4 bytes. No pickling, no per-element
work. Of a message in several frames, libzmq aborts the process that has read some when the other
end dies.
"""

from __future__ import annotations

import math
from dataclasses import astuple, fields
from typing import Any, get_args

import msgpack
import numpy as np

from pie_py.wire.plan import (
    BATCH_TYPES,
    BatchResult,
    Hello,
    Message,
    ModelDescription,
    Plan,
    PlanResult,
    Values,
)

_WORD = 4  # bytes
# Messages of plain fields, by their names.
_PLAIN: dict[str, type[Any]] = {
    kind.__name__: kind for kind in get_args(Message) if kind not in (Plan, PlanResult, Hello)
}

_VALUES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Values)}


def encode(message: Message) -> bytes:
    """Turns a message into a ZeroMQ frame."""
    arrays: list[memoryview] = []
    header: tuple[Any, ...]
    match message:
        case Plan():
            batches = [(b.kind, _put(b, arrays)) for b in message.batches]
            header = ("plan", message.id, message.model, batches)
        case PlanResult():
            results = [
                (
                    r.error,
                    None if r.values is None else type(r.values).__name__,
                    None if r.values is None else _put(r.values, arrays),
                    r.refused,
                    r.nanoseconds,
                )
                for r in message.results
            ]
            turns = (message.long_turns, message.longest_turn)
            part = (message.first, message.last, message.idle_ns, *turns)
            header = ("result", message.id, message.model, results, part)
        case Hello():
            models = [{f.name: getattr(m, f.name) for f in fields(m)} for m in message.models]
            header = ("hello", message.pid, message.device, models)
        case _:
            header = (type(message).__name__, *astuple(message))
    head: bytes = msgpack.packb(header)
    size = len(head).to_bytes(_WORD, "little")
    return b"".join((size, head, bytes(-len(head) % _WORD), *arrays))


def decode(frame: bytes) -> Message:
    """Reads a message back. Its arrays are views of the frame.

    Raises:
        ValueError: if it is not a message of this protocol.
    """
    try:
        size = int.from_bytes(frame[:_WORD], "little")
        head = memoryview(frame)[_WORD : _WORD + size]
        header = msgpack.unpackb(head, use_list=True, strict_map_key=False)
        arrays = _Arrays(frame, _WORD + size + -size % _WORD)
        match header:
            case ["plan", number, model, batches]:
                taken = [arrays.take(BATCH_TYPES[kind], shapes) for kind, shapes in batches]
                return Plan(number, model, taken)
            case ["result", number, model, results, part]:
                answers = [
                    BatchResult(error, kind and arrays.take(_VALUES[kind], shapes), *rest)
                    for error, kind, shapes, *rest in results
                ]
                return PlanResult(number, model, answers, *part)
            case ["hello", pid, device, models]:
                return Hello(pid, device, [ModelDescription(**m) for m in models])
            case [str(name), *fields_of]:
                found: Message = _PLAIN[name](*fields_of)
                return found
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a message of the worker protocol: {error!r}") from error
    raise ValueError(f"not a message of the worker protocol: {header!r:.200}")


_WORDS = np.dtype("<i4")
_DTYPES = {"Int32": _WORDS, "Uint32": np.dtype("<u4"), "Float32": np.dtype("<f4")}
_LAYOUTS: dict[type[Any], list[tuple[str, np.dtype[Any]]]] = {
    record: [(f.name, _DTYPES[str(f.type)]) for f in fields(record)]
    for record in (*BATCH_TYPES.values(), *_VALUES.values())
}


def _put(record: Any, arrays: list[memoryview]) -> list[int | tuple[int, ...]]:
    """Appends a record's arrays and returns the length of each, or the shape if it has more
    dimensions.
    """
    shapes: list[int | tuple[int, ...]] = []
    for name, dtype in _LAYOUTS[type(record)]:
        array = np.ascontiguousarray(getattr(record, name), dtype)
        arrays.append(array.data)
        shapes.append(array.shape if array.ndim > 1 else array.size)
    return shapes


class _Arrays:
    """The arrays of a message, taken in order: parts of one, for making an array costs more."""

    def __init__(self, frame: bytes, start: int) -> None:
        self._words = np.frombuffer(frame, _WORDS)
        self._at = start // _WORD

    def take(self, record: type[Any], shapes: list[int | list[int]]) -> Any:
        """A record of the next arrays. Raises ValueError if the message has too little."""
        words, at = self._words, self._at
        arrays = []
        for (_, dtype), shape in zip(_LAYOUTS[record], shapes, strict=True):
            end = at + (shape if isinstance(shape, int) else math.prod(shape))
            array = words[at:end]
            if dtype is not _WORDS:
                array = array.view(dtype)
            arrays.append(array if isinstance(shape, int) else array.reshape(shape))
            at = end
        if at > words.size:
            raise ValueError(f"not a message of the worker protocol: {at} words of {words.size}")
        self._at = at
        return record(*arrays)
