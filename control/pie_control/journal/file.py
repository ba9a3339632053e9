"""A journal's file, to which entries are appended, and the thread that brings them to the disk.

An entry is a msgpack array behind its length, its CRC-32, and the CRC-32 of these two: a damaged
length is no cut. The first entry is the head, an object.
A file that ends within an entry, or has zeros from there on, was cut by a crash, and that entry
counts as never written: what follows from an entry leaves the server only once it is on disk.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import structlog
import trio

from pie_control.errors import Refusal
from pie_py.config.whole_files import write_whole

log = structlog.get_logger("pie.durable")

FORMAT = 1
END_BYTES = 64 << 10  # at either end of a file that are read to know one that sleeps
_ASLEEP = b"\x94\xa6asleep"  # how an entry of that kind begins
_FACTS = struct.Struct("<II")  # bytes of an entry, and their CRC-32
_FRAME = struct.Struct("<8sI")  # these, and their own CRC-32


class DamagedJournal(Exception):
    """A journal has other bytes than were written; the text says where."""

    def __init__(self, text: str, entries: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.entries = entries  # that come before


class JournalLost(Refusal):
    """Another node of the cluster has the journal, or may have it."""

    def __init__(self, reason: str) -> None:
        super().__init__("node-lost", reason)


def _plain(value: Any) -> Any:
    return value.tolist()  # arrays and numbers of NumPy, and Python's own arrays


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def framed(entry: Any) -> bytes:
    """An entry as it stands in a file."""
    data = _encode(entry)
    facts = _FACTS.pack(len(data), zlib.crc32(data))
    return _FRAME.pack(facts, zlib.crc32(facts)) + data


def read_entries(data: bytes) -> tuple[list[Any], int]:
    """The entries of a file, and how many of its bytes they are: a cut one behind them is none.

    Raises:
        DamagedJournal: an entry is not what was written, and it is not the last one.
    """
    entries: list[Any] = []
    place, written = 0, len(data.rstrip(b"\0"))
    while place + _FRAME.size <= len(data):
        facts, own = _FRAME.unpack_from(data, place)
        size, check = _FACTS.unpack(facts)
        end = place + _FRAME.size + size
        if zlib.crc32(facts) != own:
            if written < place + _FRAME.size:
                break
            raise DamagedJournal(f"entry {len(entries)}, from byte {place} on, is damaged", entries)
        if end > len(data):
            break
        body = data[place + _FRAME.size : end]
        if zlib.crc32(body) != check:
            if end == len(data) or written < end:
                break
            raise DamagedJournal(f"entry {len(entries)}, from byte {place} on, is damaged", entries)
        entries.append(msgspec.msgpack.decode(body))
        place = end
    return entries, place


def read_ends(path: Path) -> tuple[list[Any], int] | None:
    """The first entry of a file, those from its last one of the kind `asleep` on, and the file's
    bytes, without the rest; None if there is no such entry near its end. Raises OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(END_BYTES)
        file.seek(max(0, size - END_BYTES))
        end = file.read()
    place = end.rfind(_ASLEEP) - _FRAME.size
    if place < 0 or len(start) < _FRAME.size:
        return None
    head_size = _FRAME.size + _FACTS.unpack_from(start)[0]
    try:
        head, read = read_entries(start[:head_size])
        last, stands = read_entries(end[place:])
    except DamagedJournal:
        return None
    whole = read == head_size and place + stands == len(end)
    return ([*head, *last], size) if whole else None


def sync_folder(folder: Path) -> None:
    """Brings the names of its files to the disk. Raises OSError."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class Journal:
    """The journal of one instance."""

    rests = False  # nothing is kept open for it while nothing is written
    lease: int | None = None  # under which a node of a cluster has it

    def __init__(self, instance: str, size: int, changed: Callable[[Journal], None]) -> None:
        """Takes how many bytes it has already, and what to call when there is more."""
        self.instance = instance
        self.size = size  # bytes, with those that wait
        self.problem: OSError | JournalLost | None = None  # why nothing is written any more
        self._changed = changed
        self._waiting: list[bytes] = []
        self._appended = self._safe = 0  # entries since it was opened, and those on disk
        self._replaces = False  # what waits is all from then on
        self.is_replaced = False  # so is what was taken to be written
        self._callbacks: list[tuple[int, Callable[[], None]]] = []

    def append(self, *entry: Any) -> None:
        """Appends an entry, which is on disk soon."""
        data = framed(entry)
        self.size += len(data)
        self._waiting.append(data)
        self._appended += 1
        self._changed(self)

    def replace(self, entries: Sequence[Any]) -> None:
        """Has it consist of these entries alone, soon."""
        self._waiting = [*map(framed, entries)]
        self.size = sum(map(len, self._waiting))
        self._appended += 1
        self._replaces = True
        self._changed(self)

    @property
    def is_safe(self) -> bool:
        """True if all entries are on disk."""
        return self._safe == self._appended

    def when_safe(self, callback: Callable[[], None]) -> None:
        """Calls back once all entries so far are on disk, or cannot be: look at `problem`."""
        if self.is_safe or self.problem is not None:
            callback()
        else:
            self._callbacks.append((self._appended, callback))

    async def until_safe(self) -> None:
        """Waits for the same. Raises `JournalLost`."""
        event = trio.Event()
        self.when_safe(event.set)
        await event.wait()
        self.check_here()

    @property
    def is_lost(self) -> bool:
        """True if another node has it, or may have it."""
        return isinstance(self.problem, JournalLost)

    def check_here(self) -> None:
        """Raises `JournalLost` if it is."""
        if isinstance(self.problem, JournalLost):
            raise self.problem

    def take(self) -> tuple[bytes, int]:
        """The bytes that wait to be written, and how many entries there are with them."""
        data, self._waiting = b"".join(self._waiting), []
        self.is_replaced, self._replaces = self._replaces, False
        return data, self._appended

    def wrote(self, entries: int, problem: OSError | JournalLost | None) -> None:
        """So many entries are on disk, or why the last ones are not."""
        if self.problem is not None:
            return
        if problem is None:
            self._safe = entries
        self.problem = problem
        due = [call for upto, call in self._callbacks if upto <= entries or problem is not None]
        self._callbacks = [] if problem else [c for c in self._callbacks if c[0] > entries]
        for callback in due:
            callback()

    def lose(self, reason: str) -> None:
        """Another server may go on with it."""
        self.wrote(0, JournalLost(reason))

    def close(self) -> None:
        """Writes no more."""


# What waits of journals, and how many entries there are with it.
Group: TypeAlias = list[tuple[Journal, bytes, int]]


class JournalFile(Journal):
    """A journal that is a file."""

    def __init__(self, path: Path, size: int, changed: Callable[[Journal], None]) -> None:
        """Takes a file of which the first bytes stand, and what to call when there is more."""
        super().__init__(path.stem, size, changed)
        self.path = path
        self._stands: int | None = size  # bytes of the file, until it was opened
        self._file = -1

    def write(self, data: bytes) -> None:
        """Brings bytes to the disk, in a thread.

        Raises:
            OSError: it does not take them.
        """
        if self.is_replaced:
            write_whole(self.path, data, durable=True)
            sync_folder(self.path.parent)
            self.close()
            self._stands = None
            return
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o600)
            if self._stands is not None:
                os.ftruncate(self._file, self._stands)
                self._stands = None
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)
        if self.rests:
            self.close()

    def close(self) -> None:
        """Closes its file, which opens again when something is written."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


class Writer:
    """Brings what is appended to all journals to the disk, in groups."""

    def __init__(
        self,
        failed: Callable[[Journal], None],
        write: Callable[[Group], Awaitable[list[OSError | JournalLost | None]]],
    ) -> None:
        """Takes what to call with a journal that the disk does not take, and what writes a group:
        it returns why each was not written.
        """
        self._failed = failed
        self._write = write
        self._dirty: dict[Journal, None] = {}
        self._settled: list[Callable[[], None]] = []
        self._work = trio.Event()

    def changed(self, journal: Journal) -> None:
        """A journal has entries that wait."""
        self._dirty[journal] = None
        self._work.set()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Calls back a little later, once all entries of any journal are on disk, or cannot be."""
        self._settled.append(callback)
        self._work.set()

    async def settled(self) -> None:
        """Waits for the same."""
        event = trio.Event()
        self.when_settled(event.set)
        await event.wait()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes until cancelled, and then what is left."""
        task_status.started()
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                group = self._group()
                settled, self._settled = self._settled, []
                self._done(group, await self._write(group))
                for callback in settled:
                    callback()
        finally:
            with trio.CancelScope(shield=True):
                await self._write(self._group())

    def _group(self) -> Group:
        dirty, self._dirty = self._dirty, {}
        return [(journal, *journal.take()) for journal in dirty if journal.problem is None]

    def _done(self, group: Group, problems: list[OSError | JournalLost | None]) -> None:
        for (journal, _, entries), problem in zip(group, problems, strict=True):
            journal.wrote(entries, problem)
            if isinstance(problem, OSError):
                log.error("a journal cannot be written", of=journal.instance, why=str(problem))
                self._failed(journal)


def write_files(group: Group) -> list[OSError | JournalLost | None]:
    """Writes what waits of journals that are files, in a thread."""
    problems: list[OSError | JournalLost | None] = []
    for journal, data, _ in group:
        assert isinstance(journal, JournalFile)
        try:
            journal.write(data)
            problems.append(None)
        except OSError as error:
            problems.append(error)
    return problems
