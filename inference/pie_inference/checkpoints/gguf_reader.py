"""Reads GGUF, a file of metadata and tensors, which a stranger may have made.

Every number of the file is held against its size before anything is looped over or allocated.
"""

from __future__ import annotations

import math
import mmap
import os
import reprlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pie_inference.checkpoints.gguf_kinds import KINDS, NAMES, Kind
from pie_inference.checkpoints.sources import Groups, Source
from pie_inference.errors import LoadError

MAX_ITEMS = 1 << 22  # texts in the lists of one file: ten times those of large vocabularies
MAX_ENTRIES = 1 << 16  # of metadata, and tensors
MAX_NAME = 1 << 10  # bytes; llama.cpp's own have less than a hundred
MAX_ALIGNMENT = 1 << 20
WIDE = torch.float32  # of norms and biases, with which there are sums before they are rounded
_DIMENSIONS = 4
_UINT32, _BOOL, _TEXT, _LIST, _UINT64 = 4, 7, 8, 9, 10  # kinds of values
_CODES = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
_STRUCTS = {kind: struct.Struct(f"<{code}") for kind, code in _CODES.items()}
_LENGTH = _STRUCTS[_UINT64]  # stands before a text


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
    offset: int  # from where the first tensor may begin
    said: int  # the byte at which the file says so

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) // self.kind.numbers * self.kind.size


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
        self.tensors = self._places(tensors)
        self.first = self._aligned()

    def __getitem__(self, key: str) -> Any:
        """A value; raises `KeyError` if it lacks, and `LoadError` if it is a damaged list."""
        value = self._values[key]
        return self._cursor.items(value, key) if isinstance(value, _Items) else value

    def __contains__(self, key: object) -> bool:
        """True if there is such a value; reads no list, as getting it would."""
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        """The names of the values."""
        return iter(self._values)

    def __len__(self) -> int:
        """How many values there are."""
        return len(self._values)

    def numbers(
        self, name: str, at: int | None = None, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """A tensor, or of its first dimension only one entry."""
        place, shape, stored = self._stored(name, at)
        found = place.kind.widened(stored, dtype).view(shape)
        return found if at is None or len(place.shape) > 1 else found[at]

    def groups(self, name: str, at: int | None = None) -> Groups | None:
        """A weight as it is stored, or of its first dimension one entry; None if in full."""
        place, shape, stored = self._stored(name, at)
        if place.kind.form is None or isinstance(place.kind.form, torch.dtype) or len(shape) != 2:
            return None
        numbers, *parts = place.kind.groups(stored)
        scales, least = (part.view(shape[0], -1) for part in parts)
        return Groups(numbers.view(shape), scales, least, place.kind.bits)

    def _stored(
        self, name: str, at: int | None
    ) -> tuple[TensorPlace, tuple[int, ...], torch.Tensor]:
        """A tensor's place, and shape and bytes of it, or of its entry if there are several
        dimensions.
        """
        place = self.tensors[name]
        start, size, shape = self.first + place.offset, place.size, place.shape
        if at is not None and len(shape) > 1:
            size //= shape[0]
            start, shape = start + at * size, shape[1:]
        stored = torch.frombuffer(self.content, dtype=torch.uint8, count=size, offset=start)
        return place, shape, stored

    def _head(self) -> tuple[int, int]:
        cursor = self._cursor
        if self.content[:4] != b"GGUF":
            raise cursor.wrong("is no GGUF: it does not begin with these letters", 0)
        cursor.at = 4
        version = cursor.scalar(_UINT32)
        if version not in (2, 3):
            order = ", its numbers begin with the highest byte" if version >= 1 << 24 else ""
            raise cursor.wrong(f"has version {version}{order}; versions 2 and 3 are read", 4)
        tensors, entries = cursor.scalar(_UINT64), cursor.scalar(_UINT64)
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

    def _places(self, count: int) -> dict[str, TensorPlace]:
        found: dict[str, TensorPlace] = {}
        for _ in range(count):
            place = self._place()
            if place.name in found:
                raise self._cursor.wrong(f"has the tensor {place.name!r} twice", place.said)
            found[place.name] = place
        return found

    def _place(self) -> TensorPlace:
        cursor = self._cursor
        said = cursor.at
        name, dimensions = cursor.text(MAX_NAME), cursor.scalar(_UINT32)
        if not 0 < dimensions <= _DIMENSIONS:
            raise cursor.wrong(f"gives {name!r} {dimensions} dimensions", said)
        shape = tuple(cursor.scalar(_UINT64) for _ in range(dimensions))[::-1]
        number, offset = cursor.scalar(_UINT32), cursor.scalar(_UINT64)
        if number not in KINDS:
            raise cursor.wrong(
                f"stores {name!r} as {NAMES.get(number, number)}, which is not supported"
                f" (supported: {', '.join(kind.name for kind in KINDS.values())})",
                said,
            )
        place = TensorPlace(name, shape, KINDS[number], offset, said)
        if not all(shape) or shape[-1] % place.kind.numbers or place.size > len(self.content):
            raise cursor.wrong(f"gives {name!r} the shape {list(shape)} of {place.kind.name}", said)
        return place

    def _aligned(self) -> int:
        """Where the first tensor may begin. Raises `LoadError` if one begins within another, or
        ends behind the file.
        """
        cursor = self._cursor
        alignment = self.get("general.alignment", 32)
        sound = type(alignment) is int and 0 < alignment <= MAX_ALIGNMENT
        if not sound or alignment.bit_count() != 1:
            raise cursor.wrong(f"has {reprlib.repr(alignment)} as `general.alignment`", 0)
        first: int = -(-cursor.at // alignment) * alignment
        end = 0
        for place in sorted(self.tensors.values(), key=lambda place: place.offset):
            if place.offset < end or place.offset % alignment:
                raise cursor.wrong(f"has {place.name!r} where another tensor is", place.said)
            end = place.offset + place.size
            if first + end > len(self.content):
                raise cursor.wrong(
                    f"ends before the tensor {place.name!r} does, at {first + end}: download it"
                    " again; it says so",
                    place.said,
                )
        return first


class GgufTensor(Source):
    """A tensor of the file, widened when it is read."""

    def __init__(self, file: GgufFile, place: TensorPlace, dtype: torch.dtype) -> None:
        """Takes the dtype of matrices."""
        self.shape = place.shape
        self._file, self._name = file, place.name
        self._dtype = dtype if len(place.shape) > 1 else WIDE

    def read(self, at: int | None = None) -> torch.Tensor:
        """See `Source.read`."""
        return self._file.numbers(self._name, at, self._dtype)

    def groups(self, at: int | None = None) -> Groups | None:
        """See `Source.groups`."""
        return self._file.groups(self._name, at)


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
        size = self.scalar(_UINT64)
        if longest is not None and size > longest:
            raise self.wrong(f"is damaged: a name of {size} bytes", start)
        self._take(size)
        return self._decoded(start + _LENGTH.size, self.at)

    def value(self) -> Any:
        """A value of the metadata; of a list, where it lies."""
        start = self.at
        kind = self.scalar(_UINT32)
        if kind in _STRUCTS:
            return self.scalar(kind)
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            raise self.wrong(f"is damaged: no kind of value has the number {kind}", start)
        of, count = self.scalar(_UINT32), self.scalar(_UINT64)
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
