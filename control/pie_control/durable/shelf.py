"""The folder of journals: a private file each, and what each user has of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import trio

from pie_control.errors import ApiError, invalid
from pie_control.instances.result_store import StoredResult
from pie_control.journal.file import (
    DamagedJournal,
    Group,
    Journal,
    JournalFile,
    JournalLost,
    Writer,
    framed,
    read_entries,
    sync_folder,
    write_files,
)
from pie_control.journal.past import Past, head_of
from pie_control.tasks import disk_may_refuse
from pie_py.config.kept_files import on_disk

log = structlog.get_logger("pie.durable")

SUFFIX = ".journal"
DAMAGED = ".damaged"  # behind a name: kept for its owner to look at


@dataclass
class Ended:
    """The journal of an instance that has ended."""

    id: str
    user: str
    size: int
    time_ns: int
    state: str
    text: str


class Shelf:
    """All journals of a server."""

    def __init__(
        self,
        folder: Path,
        failed: Callable[[Journal], None],
        date_ns: Callable[[], int],
        forget: Callable[[str], None] = lambda instance: None,
    ) -> None:
        """Takes their folder, which is made when it is needed, what to call with a journal that
        cannot be written, and with the id of an instance whose journal is removed.
        """
        self._forget = forget
        self._folder = folder
        self._date_ns = date_ns
        self.writer = Writer(failed, self._write)
        self.run = self.writer.run
        self._open: dict[str, tuple[str, Journal]] = {}  # with their users, by instance
        self._ended: dict[str, Ended] = {}  # the oldest first

    def bytes_of(self, user: str) -> int:
        """Bytes of the disk that a user's journals take."""
        running = [journal.size for owner, journal in self._open.values() if owner == user]
        ended = [one.size for one in self._ended.values() if one.user == user]
        return sum(map(on_disk, [*running, *ended]))

    async def create(self, instance: str, user: str, entries: list[Any]) -> int:
        """Makes a journal that begins so, which is on disk then; returns its bytes.

        Raises:
            ApiError: `out-of-resources`: the disk does not take it.
        """
        data = b"".join(map(framed, entries))
        await trio.to_thread.run_sync(self._create, self._path(instance), data)
        return len(data)

    def _create(self, path: Path, data: bytes) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(number)
                sync_folder(self._folder)
            except OSError:
                path.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ApiError(
                "out-of-resources", f"no journal can be written here: {error.strerror}"
            ) from None

    async def _write(self, group: Group) -> list[OSError | JournalLost | None]:
        return await trio.to_thread.run_sync(write_files, group)

    async def rewind(self, instance: str, entries: list[Any]) -> None:
        """Has a journal of an instance that has ended end with these of its entries."""

    def open(self, instance: str, user: str, size: int) -> Journal:
        """Opens a journal to go on after so many bytes. Raises OSError, and `JournalLost`."""
        journal = self._opened(instance, size)
        self._ended.pop(instance, None)
        self._open[instance] = user, journal
        return journal

    def _opened(self, instance: str, size: int) -> Journal:
        return JournalFile(self._path(instance), size, self.writer.changed)

    def end(self, instance: str, state: str, text: str) -> None:
        """An instance has ended: its journal is closed, and kept for a while."""
        user, journal = self._open.pop(instance)
        journal.close()
        if journal.is_lost:
            return
        if journal.problem is not None:  # nor could its end be written: it must not go on
            self.remove(instance)
            return
        self.has_ended(Ended(instance, user, journal.size, self._date_ns(), state, text))

    def cannot_go_on(self, instance: str, text: str) -> None:
        """Nor can an instance that was found; the text says why."""

    def has_ended(self, ended: Ended) -> None:
        """Knows of the journal of an instance that has ended."""
        self._ended[ended.id] = ended

    async def drop_old(self, seconds: float) -> None:
        """Removes journals of instances that ended longer ago."""
        before = self._date_ns() - seconds * 1e9
        for ended in [one for one in self._ended.values() if one.time_ns < before]:
            self._remove(ended)

    def make_room(self, user: str, is_full: Callable[[], bool]) -> None:
        """Removes a user's oldest journals of instances that have ended, while there is no room."""
        for ended in [one for one in self._ended.values() if one.user == user]:
            if not is_full():
                return
            self._remove(ended)

    def _remove(self, ended: Ended) -> None:
        del self._ended[ended.id]
        self.remove(ended.id)

    def remove(self, instance: str) -> None:
        """Removes a journal that is not open."""
        with disk_may_refuse("remove a journal"):
            self._path(instance).unlink(missing_ok=True)
            self._forget(instance)

    def _path(self, instance: str) -> Path:
        return self._folder / f"{instance}{SUFFIX}"

    async def _read(self, instance: str) -> bytes:
        """The bytes of a journal. Raises OSError."""
        path = self._path(instance)
        if path.parent != self._folder or "\0" in instance:
            raise FileNotFoundError(instance)
        return await trio.to_thread.run_sync(path.read_bytes)

    async def result(self, instance: str, user: str | None) -> StoredResult | None:
        """How an instance of a user has ended of which no server has more than the journal."""
        return None

    async def past(self, instance: str) -> Past:
        """Reads an open journal. Raises DamagedJournal, OSError."""
        data = await self._read(instance)
        return await trio.to_thread.run_sync(lambda: Past.of(*read_entries(data)))

    def left(self, instance: str) -> Past | DamagedJournal | OSError:
        """Reads a journal of a server before this one, in short that of an instance that sleeps; or
        why it cannot be read. For a thread.
        """
        path = self._path(instance)
        try:
            return Past.of_sleeper(path) or Past.of(*read_entries(path.read_bytes()))
        except (DamagedJournal, OSError) as error:
            return error

    async def entries(self, instance: str, user: str | None) -> list[Any]:
        """The entries of a journal, of a user's instance, or of any user's.

        Raises:
            ApiError: `not-found`: there is none; `invalid-argument`: it is damaged.
        """
        try:
            data = await self._read(instance)
            entries, _ = await trio.to_thread.run_sync(read_entries, data)
            if user in (None, head_of(entries)["user"]):
                return entries
        except DamagedJournal as error:
            raise invalid(f"the journal of {instance}: {error}") from None
        except OSError:
            pass
        raise ApiError("not-found", f"no durable instance of yours is called {instance!r}")

    async def release(self, instance: str) -> bool:
        """Another server may go on with an instance that was found; False if there is none."""
        return False

    def put_aside(self, instance: str) -> None:
        """A journal is damaged."""
        path = self._path(instance)
        path.rename(path.with_name(path.name + DAMAGED))

    async def found(self) -> AsyncIterator[str]:
        """Instances whose journals a server before this one has left."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            yield path.name.removesuffix(SUFFIX)
