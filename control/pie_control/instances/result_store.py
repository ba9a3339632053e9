"""Results of instances that were launched detached, for clients that ask after a restart.

Each is a file of a `SettingsFolder`. They are written by a thread soon after an instance's end,
and at the latest when the server stops. They are bounded by their age, and by number and bytes of
each user's.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio

from pie_control.data_folder import SettingsFolder
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_py.config.kept_files import on_disk

log = structlog.get_logger("pie.instances")

MOST_OF_USER = 500
BYTES_OF_USER = 16 << 20  # of the disk
_BESIDE = 250  # bytes of a file beside its text, about


@dataclass(frozen=True, slots=True)
class StoredResult:
    """How an instance has ended."""

    id: str
    user: str
    state: str
    text: str
    ended_ns: int  # Unix epoch


class ResultStore:
    """Results of detached instances that have ended."""

    def __init__(self, folder: Path, seconds: float, date_ns: Callable[[], int]) -> None:
        """Takes the files' folder, for how long there is a result, 0 for none, and the clock."""
        names = StoredResult.__slots__
        self._files = SettingsFolder(folder if seconds else None, *names)
        self._age_ns = int(seconds * 1e9)
        self._date_ns = date_ns
        self._followed: set[Instance] = set()
        self._new: list[StoredResult] = []  # not written yet
        self._users: dict[str, OrderedDict[str, tuple[int, int]]] = {}  # date and bytes, by id
        self._work = trio.Event()

    def follow(self, instance: Instance) -> None:
        """Will store an instance's result."""
        if self._age_ns:
            self._followed.add(instance)

    def unfollow(self, instance: Instance) -> None:
        """Will not: it goes on elsewhere."""
        self._followed.discard(instance)

    def on_end(self, instance: Instance) -> None:
        """An instance has ended."""
        if instance not in self._followed:
            return
        self._followed.remove(instance)
        ended = instance.ended
        assert ended is not None
        state, text = ended.state.value, ended.text
        self._new.append(StoredResult(instance.id, instance.user, state, text, ended.time_ns))
        self._work.set()

    def keep(self, result: StoredResult) -> None:
        """Stores a result."""
        self._new.append(result)
        self._work.set()

    def find(self, instance_id: str, user: str | None) -> StoredResult | None:
        """A result of a user, None for any user's."""
        fields = self._files.get(instance_id)
        if fields is None:
            return None
        found = StoredResult(**fields)
        if user not in (None, found.user) or self._is_old(found.ended_ns):
            return None
        return found

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes results, and removes those that are old, until cancelled."""
        task_status.started()
        try:
            await trio.to_thread.run_sync(self._look)
            while True:
                with trio.move_on_after(600.0):  # then it looks for old ones
                    await self._work.wait()
                self._work = trio.Event()
                new = self._new[:]
                await trio.to_thread.run_sync(partial(self._write, new))
                del self._new[: len(new)]
        finally:
            self._write(self._new)

    def _look(self) -> None:
        """Counts what a server before this one has stored."""
        there = [StoredResult(**fields) for fields in self._files.all()]
        for result in sorted(there, key=lambda result: result.ended_ns):
            self._count(result)

    def _write(self, results: list[StoredResult]) -> None:
        for result in results:
            fields = {name: getattr(result, name) for name in StoredResult.__slots__}
            try:
                self._files.put(result.id, **fields)
            except ApiError as error:
                log.warning("a result is lost at a restart", instance=result.id, reason=str(error))
            else:
                self._count(result)
        for user in list(self._users):
            self._bound(user)

    def _count(self, result: StoredResult) -> None:
        of_user = self._users.setdefault(result.user, OrderedDict())
        of_user[result.id] = result.ended_ns, on_disk(len(json.dumps(result.text)) + _BESIDE)

    def bytes_of(self, user: str) -> int:
        """Bytes of the disk that a user's results take."""
        return sum(size for _, size in [*self._users.get(user, {}).values()])

    def _bound(self, user: str) -> None:
        """Removes a user's oldest results."""
        of_user = self._users[user]
        size = sum(size for _, size in of_user.values())
        while of_user:
            oldest, (ended_ns, its) = next(iter(of_user.items()))
            if (
                len(of_user) <= MOST_OF_USER
                and size <= BYTES_OF_USER
                and not self._is_old(ended_ns)
            ):
                return
            self._files.remove(oldest)
            del of_user[oldest]
            size -= its
        del self._users[user]

    def _is_old(self, ended_ns: int) -> bool:
        return self._date_ns() - ended_ns > self._age_ns
