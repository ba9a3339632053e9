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
from typing import Any

import msgspec
import structlog
import trio

from pie_control.errors import Refusal

log = structlog.get_logger("pie.durable")

FORMAT = 1
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


class Journal:
    """The open journal of one instance."""

    def __init__(self, path: Path, size: int, changed: Callable[[Journal], None]) -> None:
        """Takes a file of which the first bytes stand, and what to call when there is more.

        Raises:
            OSError: it cannot be opened.
        """
        self.path = path
        self.size = size  # bytes, with those that wait
        self.problem: OSError | JournalLost | None = None  # why nothing is written any more
        self.lease: int | None = None  # under which a node of a cluster has it
        self._is_written = self._is_closed = False
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, size)
        self._changed = changed
        self._waiting: list[bytes] = []
        self._appended = self._safe = 0  # entries since it was opened, and those on disk
        self._callbacks: list[tuple[int, Callable[[], None]]] = []

    def append(self, *entry: Any) -> None:
        """Appends an entry, which is on disk soon."""
        data = framed(entry)
        self.size += len(data)
        self._waiting.append(data)
        self._appended += 1
        self._changed(self)

    @property
    def is_safe(self) -> bool:
        """True if all entries are on disk."""
        return self._safe == self._appended

    def when_safe(self, callback: Callable[[], None]) -> None:
        """Calls back once all entries so far are on disk, or cannot be written: look at
        `problem`.
        """
        if self.is_safe or self.problem is not None:
            callback()
        else:
            self._callbacks.append((self._appended, callback))

    async def until_safe(self) -> None:
        """Waits for the same."""
        event = trio.Event()
        self.when_safe(event.set)
        await event.wait()

    @property
    def is_lost(self) -> bool:
        """True if another node has it, or may have it."""
        return isinstance(self.problem, JournalLost)

    def check_here(self) -> None:
        """Raises `JournalLost` if it is."""
        if isinstance(self.problem, JournalLost):
            raise self.problem

    def take(self) -> tuple[bytes, int]:
        """What waits to be written, and how many entries there are with it; until `settle`."""
        self._is_written = True
        data, self._waiting = b"".join(self._waiting), []
        return data, self._appended

    def write(self, data: bytes) -> None:
        """Brings bytes to the disk, in a thread.

        Raises:
            OSError: it does not take them.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)

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

    def settle(self) -> None:
        """What was taken is written, or is not."""
        self._is_written = False
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Writes no more, once a thread does not write."""
        self._is_closed = True
        if not self._is_written:
            os.close(self._file)
            self._file = -1


class Writer:
    """Brings what is appended to all journals to the disk, in groups."""

    def __init__(self, failed: Callable[[Journal], None]) -> None:
        """Takes what to call with a journal that the disk does not take."""
        self._failed = failed
        # In a cluster: brings what was written here to its database, too; false once that is lost.
        self.replicate: Callable[[list[tuple[Journal, bytes]]], Awaitable[bool]] | None = None
        self._dirty: dict[Journal, None] = {}
        self._work = trio.Event()

    def changed(self, journal: Journal) -> None:
        """A journal has entries that wait."""
        self._dirty[journal] = None
        self._work.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes until cancelled, and then what is left."""
        task_status.started()
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                group = self._group()
                problems = await trio.to_thread.run_sync(_write, group)
                if self.replicate is not None:
                    written = zip(group, problems, strict=True)
                    parts = [(one[0], one[1]) for one, problem in written if problem is None]
                    if parts and not await self.replicate(parts):
                        for journal, _ in parts:
                            journal.wrote(0, JournalLost("the node has lost its lease"))
                self._done(group, problems)
        finally:
            _write(self._group())

    def _group(self) -> list[tuple[Journal, bytes, int]]:
        dirty, self._dirty = self._dirty, {}
        return [(journal, *journal.take()) for journal in dirty if journal.problem is None]

    def _done(
        self, group: list[tuple[Journal, bytes, int]], problems: list[OSError | None]
    ) -> None:
        for (journal, _, entries), problem in zip(group, problems, strict=True):
            journal.wrote(entries, problem)
            journal.settle()
            if problem is not None:
                log.error("a journal cannot be written", file=journal.path.name, why=str(problem))
                self._failed(journal)


def _write(group: list[tuple[Journal, bytes, int]]) -> list[OSError | None]:
    problems: list[OSError | None] = []
    for journal, data, _ in group:
        try:
            journal.write(data)
            problems.append(None)
        except OSError as error:
            problems.append(error)
    return problems
