"""Reads GGUF, a file of metadata and tensors, which a stranger may have made.

Every number of the file is held against its size before anything is looped over or allocated.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pie_inference.checkpoints.gguf_kinds import KINDS, NAMES, Kind
from pie_inference.errors import LoadError

MAX_ITEMS = 1 << 22  # texts in the lists of one file: ten times those of large vocabularies
MAX_ENTRIES = 1 << 16  # of metadata, and tensors
MAX_NAME = 1 << 16  # bytes, as the format says
MAX_ALIGNMENT = 1 << 20
_DIMENSIONS = 4
_LENGTH = struct.Struct("<Q")
_SCALARS = [struct.Struct(f"<{code}") for code in "BbHhIif?"]
_TEXT, _LIST = 8, 9
_WIDE = {10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d")}
_STRUCTS = dict(enumerate(_SCALARS)) | _WIDE
_BOOL = 7


class _Items(NamedTuple):
    """Where a list lies in the file."""

    kind: int
    length: int
    start: int


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies in the file."""

    name: str
    shape: tuple[int, ...]  # as PyTorch has it: the last dimension's numbers are neighbours
    kind: Kind
    start: int
    size: int  # in bytes


class GgufFile(Mapping[str, Any]):
    """A GGUF: its metadata by name, and its tensors. A list is read when it is asked for."""

    def __init__(self, file: Path) -> None:
        """Reads what lies before the tensors. Raises `LoadError` if the file is damaged."""
        self.file = file
        try:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                # Private: what PyTorch takes must be writable, and the file stays as it is.
                self.content = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise LoadError(f"{file} cannot be read: {error}") from None
        self._cursor = _Cursor(self.content, file)
        tensors, entries = self._head()
        self._values = self._metadata(entries)
        self.tensors = {tensor.name: tensor for tensor in self._places(tensors)}

    def __getitem__(self, key: str) -> Any:
        """A value; raises `KeyError` if it lacks, and `LoadError` if it is a damaged list."""
        value = self._values[key]
        return self._cursor.items(value, key) if isinstance(value, _Items) else value

    def __contains__(self, key: object) -> bool:
        """Whether there is such a value; reads no list, as getting it would."""
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        """The names of the values."""
        return iter(self._values)

    def __len__(self) -> int:
        """How many values there are."""
        return len(self._values)

    def numbers(self, name: str, at: int | None = None) -> torch.Tensor:
        """A tensor, float32, or of its first dimension only one entry."""
        place = self.tensors[name]
        start, size, shape = place.start, place.size, place.shape
        if at is not None and len(shape) > 1:
            size //= shape[0]
            start, shape, at = start + at * size, shape[1:], None
        stored = torch.frombuffer(self.content, dtype=torch.uint8, count=size, offset=start)
        found = place.kind.widened(stored).view(shape)
        return found if at is None else found[at]

    def _head(self) -> tuple[int, int]:
        cursor = self._cursor
        if self.content[:4] != b"GGUF":
            raise cursor.wrong("is no GGUF: it does not begin with these letters", 0)
        cursor.at = 4
        version = cursor.scalar(4)
        if version not in (2, 3):
            order = ", its numbers begin with the highest byte" if version >= 1 << 24 else ""
            raise cursor.wrong(f"has version {version}{order}; versions 2 and 3 are read", 4)
        tensors, entries = cursor.scalar(10), cursor.scalar(10)
        for count, what in ((tensors, "tensors"), (entries, "metadata")):
            if count > MAX_ENTRIES:
                raise cursor.wrong(f"has {count} entries of {what}", 8)
        return tensors, entries

    def _metadata(self, count: int) -> dict[str, Any]:
        cursor = self._cursor
        values: dict[str, Any] = {}
        for _ in range(count):
            start = cursor.at
            key = cursor.text(MAX_NAME)
            if key in values:
                raise cursor.wrong(f"has {key!r} twice in its metadata", start)
            values[key] = cursor.value()
        return values

    def _places(self, count: int) -> list[TensorPlace]:
        cursor = self._cursor
        alignment = self.get("general.alignment", 32)
        if type(alignment) is not int or not _is_power(alignment) or alignment > MAX_ALIGNMENT:
            raise cursor.wrong(f"has {alignment!r} as `general.alignment`", 0)
        found: dict[str, tuple[tuple[int, ...], Kind, int, int]] = {}
        for _ in range(count):
            start = cursor.at
            name = cursor.text(MAX_NAME)
            if name in found:
                raise cursor.wrong(f"has the tensor {name!r} twice", start)
            found[name] = (*self._tensor(name, start), start)
        first = -(-cursor.at // alignment) * alignment
        places = [
            (TensorPlace(name, shape, kind, first + offset, _bytes(shape, kind)), said)
            for name, (shape, kind, offset, said) in found.items()
        ]
        end = first
        for place, said in sorted(places, key=lambda each: each[0].start):
            if place.start < end or place.start % alignment:
                raise cursor.wrong(f"has {place.name!r} where another tensor is", said)
            end = place.start + place.size
            if end > len(self.content):
                raise cursor.wrong(
                    f"ends before the tensor {place.name!r} does, at byte {end}: download it"
                    " again; it says where",
                    said,
                )
        return [place for place, _ in places]

    def _tensor(self, name: str, start: int) -> tuple[tuple[int, ...], Kind, int]:
        """Shape, kind and offset."""
        cursor = self._cursor
        dimensions = cursor.scalar(4)
        if not 0 < dimensions <= _DIMENSIONS:
            raise cursor.wrong(f"gives {name!r} {dimensions} dimensions", start)
        shape = tuple(cursor.scalar(10) for _ in range(dimensions))[::-1]
        number, offset = cursor.scalar(4), cursor.scalar(10)
        if number not in KINDS:
            said = NAMES.get(number, number)
            raise cursor.wrong(
                f"stores {name!r} as {said}, which is not supported (supported:"
                f" {', '.join(kind.name for kind in KINDS.values())})",
                start,
            )
        kind = KINDS[number]
        if not all(shape) or shape[-1] % kind.numbers or _bytes(shape, kind) > len(self.content):
            raise cursor.wrong(f"gives {name!r} the shape {list(shape)} of {kind.name}", start)
        return shape, kind, offset


class _Cursor:
    """Reads one value after another."""

    def __init__(self, content: mmap.mmap, file: Path) -> None:
        self.at = 0
        self._content, self._end, self._file = content, len(content), file
        self._texts = 0  # in lists, so far

    def wrong(self, what: str, at: int) -> LoadError:
        return LoadError(f"{self._file} {what} (byte {at})")

    def scalar(self, kind: int) -> Any:
        form, start = _STRUCTS[kind], self.at
        self._take(form.size)
        if kind == _BOOL and self._content[start] > 1:
            raise self.wrong("is damaged: neither true nor false", start)
        return form.unpack_from(self._content, start)[0]

    def text(self, longest: int | None = None) -> str:
        start = self.at
        size = self.scalar(10)
        if longest is not None and size > longest:
            raise self.wrong(f"is damaged: a name of {size} bytes", start)
        self._take(size)
        return self._decoded(start + _LENGTH.size, self.at)

    def value(self) -> Any:
        """A value of the metadata; of a list, where it lies."""
        start = self.at
        kind = self.scalar(4)
        if kind in _STRUCTS:
            return self.scalar(kind)
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            raise self.wrong(f"is damaged: no kind of value has the number {kind}", start)
        of, count = self.scalar(4), self.scalar(10)
        begin = self.at
        if of == _TEXT:
            self._pass_texts(count, start)
        elif of in _STRUCTS:
            self._take(count * _STRUCTS[of].size)
        else:
            raise self.wrong(f"has a list of values of the kind {of}, not texts or numbers", start)
        return _Items(of, count, begin)

    def items(self, items: _Items, key: str) -> list[Any]:
        content, at = self._content, items.start
        if items.kind != _TEXT:
            form = _STRUCTS[items.kind].format[1:]
            return list(struct.unpack_from(f"<{items.length}{form}", content, at))
        found: list[str] = []
        read, length = _LENGTH.unpack_from, _LENGTH.size
        try:
            for _ in range(items.length):
                end = at + length + read(content, at)[0]
                found.append(content[at + length : end].decode())
                at = end
        except UnicodeDecodeError:
            raise self.wrong(f"has no UTF-8 in the list {key!r}", at) from None
        return found

    def _pass_texts(self, count: int, start: int) -> None:
        self._texts += count
        # Each has its length before it.
        if self._texts > MAX_ITEMS or count * _LENGTH.size > self._end - self.at:
            raise self.wrong(f"has a list of {count} texts, more than there can be", start)
        content, at, end = self._content, self.at, self._end - _LENGTH.size
        read, length = _LENGTH.unpack_from, _LENGTH.size
        for _ in range(count):
            if at > end:
                break
            at += length + read(content, at)[0]
        self._take(at - self.at)

    def _take(self, size: int) -> None:
        if size > self._end - self.at:
            raise self.wrong(
                f"is damaged or cut off, download it again: {size} bytes are to follow, but"
                f" {self._end - self.at} do",
                self.at,
            )
        self.at += size

    def _decoded(self, start: int, end: int) -> str:
        try:
            return self._content[start:end].decode()
        except UnicodeDecodeError:
            raise self.wrong("has a text that is no UTF-8", start) from None


def _bytes(shape: tuple[int, ...], kind: Kind) -> int:
    numbers = 1
    for size in shape:
        numbers *= size
    return numbers // kind.numbers * kind.size


def _is_power(number: int) -> bool:
    """Whether it is a power of two."""
    return number > 0 and number & (number - 1) == 0
