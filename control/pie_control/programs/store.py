"""Uploaded programs: content-addressed files on disk, and the names users gave them."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import structlog

from pie_control.errors import ApiError
from pie_py.config.keys import LOCAL_USER

log = structlog.get_logger("pie.programs")

ProgramKind: TypeAlias = Literal["component", "python"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_LONGEST = 64  # characters of a name, and of a hash
_COMPARED = 20  # names, for those that come near: each takes half a millisecond
_FORMAT = 1  # of the index
_TEMPORARY = ".upload-"
_STALE_SECONDS = 24 * 3600


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


class ProgramStore:
    """Programs by name and by content hash. They survive a restart; servers may share a folder."""

    def __init__(self, folder: Path, max_bytes: int, date_ns: Callable[[], int]) -> None:
        """Takes the folder, the largest program in bytes, and the clock in Unix nanoseconds."""
        self.max_bytes = max_bytes
        self.date_ns = date_ns
        self._folder = folder
        self._blobs = self._folder / "blobs"
        self._index = self._folder / "index.json"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._stamp: tuple[int, int] | None = None  # of the index that was read last
        self._by_name: dict[tuple[str, str], Program] = {}  # by user and name
        self._by_hash: dict[str, list[Program]] = {}  # under each name, those that lost it too
        self._remove_stale()
        self._read()

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
        return self._add(Program(digest, name, kind, size, user, self.date_ns(), str(blob)), path)

    def name_again(self, digest: str, name: str, user: str) -> Program | None:
        """Names a program whose bytes are here already; None if they are not.

        Raises:
            ApiError: `invalid-argument` for a bad name.
        """
        self.check(name, 0)
        self._refresh()
        known = self._by_hash.get(digest)
        if known is None or not self._is_whole(known[0]):
            return None
        return self._add(replace(known[0], name=name, uploaded_by=user, uploaded_ns=self.date_ns()))

    def has(self, digest: str) -> bool:
        """Whether a program's bytes are here."""
        self._refresh()
        known = self._by_hash.get(digest)
        return known is not None and self._is_whole(known[0])

    def _is_whole(self, program: Program) -> bool:
        """Whether a program's bytes are here, by their number; what reads them checks the hash."""
        try:
            return self._blob(program.hash).stat().st_size == program.size
        except FileNotFoundError:
            return False

    def list(self, user: str | None = None) -> list[Program]:
        """Programs of a user, or of all, oldest first."""
        self._refresh()
        programs = (p for p in self._all() if user in (None, p.uploaded_by))
        return sorted(programs, key=lambda p: p.uploaded_ns)

    def find(self, name: str, user: str) -> Program:
        """A program by the user's name for it, by its content hash, or by six or more digits of
        that.

        Raises:
            ApiError: `not-found`, with the names that come near; `invalid-argument` if several
                begin so.
        """
        if len(name) > _LONGEST:  # looking for what comes near would take long
            raise ApiError("not-found", f"no program is called {name[:_LONGEST]!r}…")
        found = self._find(name, user)
        if found is None:
            self._refresh()  # another server on this folder may have it
            found = self._find(name, user)
        if found is None:
            raise ApiError("not-found", f"no program is called {name!r}{self._near(name, user)}")
        return found

    def source(self, program: Program) -> tuple[str, str]:
        """File name, for tracebacks, and text of a Python program."""
        try:
            return f"{program.name}.py", _read_text(program.path, program.hash)
        except (DamagedProgram, FileNotFoundError):
            raise ApiError("not-found", f"{program.name} {DAMAGED}") from None

    def check(self, name: str, size: int) -> None:
        """Checks what is to be uploaded.

        Raises:
            ApiError: `invalid-argument` for a bad name, `limit-exceeded` if it is too large.
        """
        if not _NAME.fullmatch(name):
            raise ApiError(
                "invalid-argument",
                f"{name!r} cannot name a program: take 1 to 64 letters, digits, '.', '_' or '-',"
                " beginning with a letter, a digit or '_'",
            )
        if size > self.max_bytes:
            raise ApiError(
                "limit-exceeded",
                f"a program of {size} bytes; this server takes {self.max_bytes} at most"
                " (max_program_bytes in its configuration)",
            )

    def remove(self, programs: Iterable[Program]) -> None:
        """Removes programs that `all_of` has told, and the bytes that no other program has."""
        gone = set(programs)
        with self._locked():
            self._refresh()
            self._write([program for program in self._all() if program not in gone])
            self._read()
            for digest in {program.hash for program in gone} - self._by_hash.keys():
                self._blob(digest).unlink(missing_ok=True)

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
        named = self._by_name.get((user, name))
        if named is not None:
            return named
        if _HASH.fullmatch(name):
            # A whole hash is proof enough that one knows the program; a part of it is not.
            candidates = self._by_hash.get(name, [])
        elif _PREFIX.fullmatch(name):
            anyone = user == LOCAL_USER
            candidates = [
                p
                for p in self._all()
                if p.hash.startswith(name) and (anyone or p.uploaded_by == user)
            ]
        else:
            return None
        if len({p.hash for p in candidates}) > 1:
            raise ApiError("invalid-argument", f"several programs' hashes begin with {name}")
        mine = [p for p in candidates if p.uploaded_by == user]
        return next(reversed(mine or candidates), None)

    def _all(self) -> Iterator[Program]:
        return itertools.chain.from_iterable(self._by_hash.values())

    def _near(self, name: str, user: str) -> str:
        names = sorted(n for u, n in self._by_name if u == user)
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
        """Removes what a server that was killed left behind."""
        oldest = self.date_ns() / 1e9 - _STALE_SECONDS
        for path in self._folder.glob(f"{_TEMPORARY}*"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    # The index on disk

    def _add(self, program: Program, path: Path | None = None) -> Program:
        """Adds a program, and its bytes if they lie at a temporary path."""
        with self._locked():
            self._refresh()
            if path is not None:
                os.replace(path, program.path)
            self._remember(program)
            self._write(self._all())
        return program

    def _remember(self, program: Program) -> None:
        same = self._by_hash.setdefault(program.hash, [])
        key = (program.uploaded_by, program.name)
        same[:] = [p for p in same if (p.uploaded_by, p.name) != key]
        same.append(program)
        self._by_name[key] = program

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._folder / "index.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _refresh(self) -> None:
        if self._stamp != self._stat():
            self._read()

    def _stat(self) -> tuple[int, int] | None:
        try:
            stat = self._index.stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _read(self) -> None:
        stamp = self._stat()
        if stamp is None:
            return
        try:
            index = json.loads(self._index.read_text(encoding="utf-8"))
            if index["format"] != _FORMAT:
                raise ValueError(f"format {index['format']}")
            for fields in index["programs"]:
                if not _HASH.fullmatch(fields["hash"]):
                    raise ValueError(f"hash {fields['hash']!r}")
            programs = [
                Program(**fields, path=str(self._blob(fields["hash"])))
                for fields in index["programs"]
            ]
        except (ValueError, TypeError, KeyError) as error:
            # Its programs can be uploaded again; a server that does not start is worse.
            aside = self._index.with_suffix(".damaged")
            os.replace(self._index, aside)
            log.error("the index of programs is damaged", kept_as=str(aside), problem=str(error))
            self._stamp = None
            return
        self._by_name.clear()
        self._by_hash.clear()
        for program in sorted(programs, key=lambda p: p.uploaded_ns):
            if Path(program.path).is_file():
                self._remember(program)
        self._stamp = stamp

    def _write(self, programs: Iterable[Program]) -> None:
        facts = [asdict(program) for program in programs]
        for fields in facts:
            del fields["path"]
        text = json.dumps({"format": _FORMAT, "programs": facts})
        path = self.temporary_path()
        path.write_text(text, encoding="utf-8")
        os.replace(path, self._index)
        self._stamp = self._stat()


def kind_of(head: bytes) -> ProgramKind:
    """Kind of a program by its first bytes: Wasm's magic number, else Python."""
    return "component" if head.startswith(b"\0asm") else "python"


def _most_alike(name: str, names: Iterable[str]) -> list[str]:
    """As many names as comparing takes little time for: those that begin most alike."""

    def alike(other: str) -> int:
        pairs = enumerate(zip(name, other, strict=False))
        return next((at for at, (one, two) in pairs if one != two), len(other))

    return sorted(names, key=alike, reverse=True)[:_COMPARED]


class DamagedProgram(Exception):
    """A file did not hold the program that it is named for, and is removed."""


DAMAGED = "is damaged on the server; upload it again"


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


@lru_cache(maxsize=256)
def _read_text(path: str, digest: str) -> str:
    # The path is the content's hash, so what was read stays true.
    return read_blob(path, digest).decode()
