"""The folder of journals: a private file each, and what each user has of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from pie_control.errors import ApiError
from pie_control.journal.file import (
    DamagedJournal,
    Journal,
    Writer,
    framed,
    read_entries,
    sync_folder,
)
from pie_control.journal.past import Past, head_of

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


class Shelf:
    """All journals of a server."""

    def __init__(self, folder: Path, writer: Writer, date_ns: Callable[[], int]) -> None:
        """Takes their folder, which is made when it is needed."""
        self._folder = folder
        self._writer = writer
        self._date_ns = date_ns
        self._open: dict[str, tuple[str, Journal]] = {}  # with their users, by instance
        self._ended: dict[str, Ended] = {}  # the oldest first

    def bytes_of(self, user: str) -> int:
        """Bytes of a user's journals."""
        running = sum(journal.size for owner, journal in self._open.values() if owner == user)
        return running + sum(one.size for one in self._ended.values() if one.user == user)

    def create(self, instance: str, head: dict[str, Any], entries: list[Any]) -> int:
        """Makes a journal that begins so, which is on disk then, in a thread; returns its bytes.

        Raises:
            ApiError: `out-of-resources`: the disk does not take it.
        """
        path = self.path(instance)
        data = b"".join(map(framed, [head, *entries]))
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
        return len(data)

    def open(self, instance: str, user: str, size: int) -> Journal:
        """A journal, to go on after so many bytes."""
        journal = Journal(self.path(instance), size, self._writer.changed)
        self._ended.pop(instance, None)
        self._open[instance] = user, journal
        return journal

    def end(self, instance: str) -> None:
        """An instance has ended: its journal is closed, and kept for a while."""
        user, journal = self._open.pop(instance)
        journal.close()
        if journal.problem is not None:  # nor could its end be written: it must not go on
            journal.path.unlink(missing_ok=True)
            return
        self.has_ended(Ended(instance, user, journal.size, self._date_ns()))

    def has_ended(self, ended: Ended) -> None:
        """Knows of the journal of an instance that has ended."""
        self._ended[ended.id] = ended

    def drop_old(self, seconds: float) -> None:
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
        self.path(ended.id).unlink(missing_ok=True)

    def path(self, instance: str) -> Path:
        """The file of an instance's journal."""
        return self._folder / f"{instance}{SUFFIX}"

    def entries(self, instance: str, user: str | None) -> list[Any]:
        """What a journal has, of a user's instance, or of any user's.

        Raises:
            ApiError: `not-found`: there is none; `invalid-argument`: it is damaged.
        """
        path = self.path(instance)
        try:
            if path.parent != self._folder:
                raise FileNotFoundError
            entries, _ = read_entries(path.read_bytes())
            if user in (None, head_of(entries)["user"]):
                return entries
        except DamagedJournal as error:
            raise ApiError("invalid-argument", f"the journal of {instance}: {error}") from None
        except OSError:
            pass
        raise ApiError("not-found", f"no durable instance of yours is called {instance!r}")

    def read_all(self) -> Iterator[tuple[str, Past | dict[str, Any], str]]:
        """The journals that a server before this one has left: instance and past; or, of one that
        is damaged and put aside, what its head says, and what is wrong.
        """
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            instance = path.name.removesuffix(SUFFIX)
            try:
                yield instance, Past.of_sleeper(path) or Past.read(path), ""
            except DamagedJournal as error:
                log.error("a journal is damaged", instance=instance, reason=str(error))
                path.rename(path.with_name(path.name + DAMAGED))
                head = error.entries[0] if error.entries else {}
                yield instance, head if isinstance(head, dict) else {}, str(error)
            except OSError as error:
                log.error("a journal cannot be read", instance=instance, reason=str(error))
