"""Uploaded programs: content-addressed files on disk, and the names users gave them."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import structlog
from cachetools import LRUCache
from numpy.typing import NDArray

from pie_control.errors import ApiError, exceeded, invalid, unsupported
from pie_control.programs.adapter_check import numbers
from pie_control.programs.index import Index, Row
from pie_py.config.keys import LOCAL_USER
from pie_py.device_programs.library import programs as library
from pie_py.device_programs.scope import Text
from pie_py.wire import javascript
from pie_py.wire.adapter_file import is_adapter, names_config, split
from pie_py.wire.modules import LONGEST_NAME, NAME, SAMPLER

log = structlog.get_logger("pie.programs")

ProgramKind: TypeAlias = Literal[
    "component", "python", "javascript", "sampler", "adapter", "tensors"
]
# Of the sources' names in tracebacks.
ENDINGS = {"python": ".py", "javascript": ".js", "sampler": ".py"}

_NAME = re.compile(NAME)
_HASH = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_LONGEST = 64  # characters of a name, and of a hash
_SHOWN = 12  # digits of a hash, in the place of a name
_COMPARED = 20  # names, for those that come near: each takes half a millisecond
PROGRAM_BYTES = 256 << 20  # of one program
MOST_TEXT_BYTES = 32 << 20  # of the sources that were launched last
_CACHED = 1024  # programs in memory: the files have the rest
_TEMPORARY = ".upload-"
_NOTE_NS = 600 * 10**9  # between two notes that a program is used
_OVERHEAD = 4096  # bytes that a program takes in addition to its own


@dataclass(frozen=True, slots=True)
class Program:
    """One uploaded program, under the name that one user gave it."""

    hash: str  # SHA-256 of its bytes, hexadecimal
    name: str
    kind: ProgramKind
    size: int  # bytes
    uploaded_by: str
    uploaded_ns: int  # Unix epoch
    path: str  # of its bytes


@contextmanager
def disk_errors(doing: str = "keep") -> Iterator[None]:
    """Turns what the disk refuses into an error for the client.

    Raises:
        ApiError: `out-of-resources`.
    """
    try:
        yield
    except OSError as error:
        raise ApiError(
            "out-of-resources",
            f"the server cannot {doing} the program: {error.strerror}; the operator has to make"
            " room in its data folder, or let the server write there",
        ) from None


def write_whole(file: FileIO, data: bytes) -> None:
    """Writes all of it. One write takes what a disk has left, and only the next one fails.

    Raises:
        OSError: the disk does not take it.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


class ProgramStore:
    """Programs by name and by content hash. They survive a restart; servers may share a folder."""

    def __init__(self, folder: Path, max_bytes: int, date_ns: Callable[[], int]) -> None:
        """Takes the folder, the largest program in bytes, and the clock in Unix nanoseconds."""
        self.max_bytes = max_bytes
        self.date_ns = date_ns
        self._folder = folder
        self._blobs = self._folder / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._index = Index(folder)
        self._noted: dict[str, int] = {}  # when programs were noted as used, by hash
        self._texts: LRUCache[str, str] = LRUCache(MOST_TEXT_BYTES, sys.getsizeof)  # by hash
        self._found: LRUCache[tuple[str, str], Program] = LRUCache(_CACHED)  # by name and user
        self._found_in: tuple[int, int] | None = None  # the version of the index
        self._program = lru_cache(_CACHED)(self._make)  # instances of a program share it
        self._remove_stale()

    def put(self, data: bytes, name: str, kind: ProgramKind, user: str) -> Program:
        """Keeps a program and gives it a name, which the user's later upload may take over.

        Raises:
            ApiError: `invalid-argument` for a bad name, `limit-exceeded` if it is too large.
        """
        self.check(name, len(data))
        path = self.temporary_path()
        path.write_bytes(data)
        return self.adopt(path, hashlib.sha256(data).hexdigest(), name, kind, user)

    def adopt(self, path: Path, digest: str, name: str, kind: ProgramKind, user: str) -> Program:
        """As `put`, moving a file of `temporary_path`. The caller vouches for the hash."""
        size = path.stat().st_size
        self.check(name, size)
        blob = self._blob(digest)
        blob.parent.mkdir(exist_ok=True)
        row = (digest, name, kind, size, user, self.date_ns())
        with self._index.change():  # so that no other server removes these bytes meanwhile
            os.replace(path, blob)
            self._index.add(row)
        return self._program(row)

    def name_again(self, digest: str, name: str, user: str) -> Program | None:
        """Names a program whose bytes are here already; None if they are not.

        Raises:
            ApiError: `invalid-argument` for a bad name.
        """
        self.check(name, 0)
        with self._index.change():
            known = self._index.one_of_hash(digest)
            if known is None or not self._has_bytes(known):
                return None
            _, _, kind, size, _, _ = known
            row = (digest, name, kind, size, user, self.date_ns())
            self._index.add(row)
        return self._program(row)

    def has(self, digest: str) -> bool:
        """True if a program's bytes are here."""
        known = self._index.one_of_hash(digest)
        return known is not None and self._has_bytes(known)

    def has_named(self, digest: str, name: str, user: str) -> bool:
        """True if a user has a program with these bytes under this name."""
        return bool(self._index.all(hash=digest, name=name, user=user))

    def _has_bytes(self, row: Row) -> bool:
        """True if a program's bytes are here, by their number; what reads them checks the hash."""
        digest, _, _, size, _, _ = row
        try:
            return self._blob(digest).stat().st_size == size
        except FileNotFoundError:
            return False

    def bytes_of(self, user: str) -> int:
        """Bytes that a user's programs take, with what the disk and the index need for each."""
        count, size = self._index.count_and_size(user)
        return size + _OVERHEAD * count

    def count_of(self, user: str) -> int:
        """How many programs a user has."""
        return self._index.count_and_size(user)[0]

    def list(self, user: str | None = None) -> Sequence[Program]:
        """Programs of a user, or of all, oldest first."""
        return self._programs(self._index.all(**({} if user is None else {"user": user})))

    def find(self, name: str, user: str) -> Program:
        """A program by the user's name for it, by its content hash, or by six or more digits of
        that.

        Raises:
            ApiError: `not-found`, with the names that come near; `invalid-argument` if several
                begin so.
        """
        if len(name) > _LONGEST:  # looking for what comes near would take long
            raise ApiError("not-found", f"no program is called {name[:_LONGEST]!r}…")
        version = self._index.version
        if self._found_in != version:
            self._found_in = version
            self._found.clear()
        found = self._found.get((name, user))
        if found is None:
            found = self._find(name, user)
            if found is None:
                raise ApiError(
                    "not-found", f"no program is called {name!r}{self._near(name, user)}"
                )
            self._found[name, user] = found
        return found

    def source(self, program: Program) -> tuple[str, str]:
        """File name, for tracebacks, and text of a program that is a source.

        Raises:
            ApiError: `unsupported` of a component, `not-found` if the bytes are gone or damaged.
        """
        if program.kind not in ENDINGS:
            raise unsupported(f"{program.name}, of kind {program.kind}, has no source")
        try:
            return f"{program.name}{ENDINGS[program.kind]}", self._text(program)
        except (DamagedProgram, FileNotFoundError):
            raise ApiError("not-found", f"{program.name} {DAMAGED}") from None

    def sampler_text(self, name: str, user: str) -> Text:
        """The text of an uploaded sampler.

        Raises:
            ApiError: `invalid-argument`: neither the library nor the user has one of this name.
        """
        near = difflib.get_close_matches(name, library(), 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        try:
            found = self.find(name, user)
        except ApiError:
            raise invalid(
                f"device program: there is no program {name!r:.60} in the library, and no sampler"
                f" of yours is called so{meant}"
            ) from None
        if found.kind != "sampler":
            raise invalid(f"{name} is a program and no sampler{meant}")
        self.used(found)
        file, text = self.source(found)
        return Text(file, 1, text.removeprefix(SAMPLER.decode()))

    def tensors(self, name: str, user: str) -> Program:
        """A user's file of tensors. Raises ApiError: as `find`, or `invalid-argument`."""
        found = self.find(name, user)
        if found.kind != "tensors":
            raise invalid(f"{name}, of kind {found.kind}, is no file of tensors")
        self.used(found)
        return found

    def _text(self, program: Program) -> str:
        text: str | None = self._texts.get(program.hash)
        if text is None:
            text = read_blob(program.path, program.hash).decode()
            if self._texts.getsizeof(text) <= self._texts.maxsize:
                self._texts[program.hash] = text
        return text

    def check(self, name: str, size: int) -> None:
        """Checks what is to be uploaded.

        Raises:
            ApiError: `invalid-argument` for a bad name, `limit-exceeded` if it is too large.
        """
        if not _NAME.fullmatch(name) or len(name.encode()) > LONGEST_NAME:
            raise invalid(
                f"{name[: 2 * _LONGEST]!r} cannot name a program: take 1 to 64 characters, no '/',"
                " '@' or control character among them, none of '.', '-' first, no space around"
            )
        if size > self.max_bytes:
            raise exceeded(f"a program of {size} bytes; this server takes {self.max_bytes} at most")

    def remove(self, programs: Iterable[Program]) -> None:
        """Removes programs that `all_of` has found, and the bytes that no other program has.

        Raises:
            ApiError: `out-of-resources`: the disk refuses it.
        """
        gone = list(programs)
        with disk_errors("remove"), self._index.change():
            self._index.remove(map(_row, gone))
        # A second one: no program is listed whose bytes are gone.
        with disk_errors("remove"), self._index.change():
            for digest in {program.hash for program in gone}:
                if self._index.one_of_hash(digest) is None:
                    self._blob(digest).unlink(missing_ok=True)
                    self._noted.pop(digest, None)

    def used(self, program: Program) -> None:
        """Notes that a program is launched: it stays for `expire`'s seconds more.

        The date is that of its file, for all users of the same program; it is written once in a
        while.
        """
        now = self.date_ns()
        if abs(now - self._noted.get(program.hash, 0)) > _NOTE_NS:
            self._noted[program.hash] = now
            with suppress(OSError):  # the launch says what is wrong with the file
                os.utime(program.path, ns=(now, now))

    def expire(self, seconds: float, in_use: Collection[str]) -> Iterator[None]:
        """Removes programs that were neither uploaded nor launched for so many seconds, one at a
        time, but for those `in_use`, by hash.
        """
        oldest = self.date_ns() - int(seconds * 1e9)
        for program in self.list():
            with suppress(FileNotFoundError):
                used = Path(program.path).stat().st_mtime_ns
                if max(used, program.uploaded_ns) < oldest and program.hash not in in_use:
                    log.info("a program has expired", name=program.name, user=program.uploaded_by)
                    self.remove([program])
            yield

    def all_of(self, name: str, user: str) -> Sequence[Program]:
        """The user's programs of a name, former ones too, or of a hash or the beginning of one.

        Raises:
            ApiError: as `find`.
        """
        found = self.find(name, user)
        mine = self.list(user)
        named = [program for program in mine if program.name == name]
        return named or [program for program in mine if program.hash == found.hash]

    def temporary_path(self) -> Path:
        """A new empty file on the store's file system. The caller removes it."""
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=_TEMPORARY)
        os.close(handle)
        return Path(name)

    def _find(self, name: str, user: str) -> Program | None:
        named = self._programs(self._index.all(name=name, user=user))
        if named:
            return named[-1]
        if _HASH.fullmatch(name):
            # A whole hash is proof enough that one knows the program; a part of it is not.
            candidates = self._programs(self._index.all(hash=name))
        elif _PREFIX.fullmatch(name):
            anyone = user == LOCAL_USER
            candidates = [
                program
                for program in self._programs(self._index.of_prefix(name))
                if anyone or program.uploaded_by == user
            ]
        else:
            return None
        if len({p.hash for p in candidates}) > 1:
            raise invalid(f"several programs' hashes begin with {name}")
        mine = [p for p in candidates if p.uploaded_by == user]
        found = next(reversed(mine or candidates), None)
        if found is None or mine or user == LOCAL_USER:
            return found
        # It may be run; what its owner calls it, or who that is, the hash does not tell.
        return replace(found, name=found.hash[:_SHOWN], uploaded_by=user)

    def _programs(self, rows: Iterable[Row]) -> Sequence[Program]:
        return [self._program(row) for row in rows]

    def _make(self, row: Row) -> Program:
        digest, name, kind, size, user, date = row
        path = str(self._blob(digest))
        return Program(digest, name, cast(ProgramKind, kind), size, user, date, path)

    def _near(self, name: str, user: str) -> str:
        names = sorted({program.name for program in self.list(user)})
        if not names:
            return "; none is uploaded yet (`pie-py upload FILE`)"
        near = difflib.get_close_matches(name, _most_alike(name, names), n=5, cutoff=0.5)
        if near:
            return f"; did you mean {' or '.join(near)}?"
        shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
        return f"; there are {shown}"

    def _blob(self, digest: str) -> Path:
        return self._blobs / digest[:2] / digest

    def _remove_stale(self) -> None:
        """Removes what killed servers left: uploads, bytes or programs without the other."""
        oldest = self.date_ns() / 1e9 - 24 * 3600
        for path in self._folder.glob(f"{_TEMPORARY}*"):
            with suppress(FileNotFoundError):  # another server's, which is complete by now
                if path.stat().st_mtime < oldest:
                    path.unlink()
        with self._index.change():
            programs = self.list()
            here = {path.name: path for path in self._blobs.glob("??/*")}
            self._index.remove(_row(program) for program in programs if program.hash not in here)
            for digest in here.keys() - {program.hash for program in programs}:
                here[digest].unlink(missing_ok=True)


def _row(program: Program) -> Row:
    return cast(Row, astuple(program)[:-1])  # the path follows from the hash


def is_hash(name: str) -> bool:
    """True if a name is a whole content hash."""
    return _HASH.fullmatch(name) is not None


def kind_of(head: bytes) -> ProgramKind:
    """Kind of a program by its first bytes: Wasm's magic number, a mark, a header of tensors, with
    an adapter's configuration or without, else Python.
    """
    if is_adapter(head):
        return "adapter" if names_config(head) else "tensors"
    if head.startswith(b"\0asm"):
        return "component"
    if head.startswith(SAMPLER):
        return "sampler"
    return "javascript" if head.startswith(javascript.MARK) else "python"


def _most_alike(name: str, names: Iterable[str]) -> list[str]:
    """As many names as comparing takes little time for: those that begin most alike."""

    def alike(other: str) -> int:
        pairs = enumerate(zip(name, other, strict=False))
        return next((at for at, (one, two) in pairs if one != two), len(other))

    return sorted(names, key=alike, reverse=True)[:_COMPARED]


class DamagedProgram(Exception):
    """A file did not hold the program that it is named for, and is removed."""


DAMAGED = "is damaged on the server; upload it again"


def tensor_of(file: Program, name: str) -> NDArray[np.float32]:
    """A tensor of a file by its name. Blocking. Raises ApiError `not-found`."""
    try:
        header, data = _tensors(file.path, file.hash)
    except (DamagedProgram, FileNotFoundError):
        raise ApiError("not-found", f"{file.name} {DAMAGED}") from None
    if name not in header:
        there = ", ".join(sorted(header))
        raise ApiError("not-found", f"{file.name} has no tensor {name!r:.100}, but {there:.300}")
    return numbers(data, header[name])


@lru_cache(maxsize=4)  # of 16 MiB at most: programs name one again for each of their samplers
def _tensors(path: str, digest: str) -> tuple[dict[str, Any], bytes]:
    header, data = split(read_blob(path, digest))
    header.pop("__metadata__", None)
    return header, data


def read_blob(path: str, digest: str) -> bytes:
    """The bytes of a program.

    Raises:
        DamagedProgram: if they do not have the program's hash.
        FileNotFoundError: if they are not there.
    """
    data = Path(path).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        log.error("a program is damaged on disk and is removed", path=path)
        Path(path).unlink(missing_ok=True)
        raise DamagedProgram(path)
    return data
