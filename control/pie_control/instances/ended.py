"""Instances that have ended: what they still hold, and records of results, logs and messages.

Records are bounded by number and by size. The user with the most makes room, so that no user's
results go because another one ends many instances.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pie_control.instances.instance import Instance, argument_bytes

if TYPE_CHECKING:
    from pie_control.wasm.guest import Guest


MOST = 1000  # records
MOST_BYTES = 20 << 20  # that they take
OWN_BYTES = 5700  # of a record, about, without messages not fetched, result, log and arguments
_CODE = re.compile(r"[a-z]+(-[a-z]+)*(?=: )")


@dataclass(slots=True)
class _Record:
    """An instance that has ended."""

    instance: Instance
    fixed_bytes: int  # of what stays as it is: result, arguments, log

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, about, with the messages that no client has fetched yet."""
        return self.fixed_bytes + self.instance.outbox.bytes


class _OfUser:
    """The records of one user, the oldest first."""

    def __init__(self) -> None:
        self.records: OrderedDict[str, _Record] = OrderedDict()
        self.size_bytes = 0

    def count(self) -> None:
        """Takes the sum again: clients may have fetched some of it."""
        self.size_bytes = sum(record.size_bytes for record in self.records.values())


class EndedInstances:
    """Records of instances that have ended lately."""

    def __init__(self, forgotten: Callable[[Instance], None]) -> None:
        """Has no record; `forgotten` is called with each instance whose record is dropped."""
        self._forgotten = forgotten
        self._all: dict[str, _Record] = {}
        self._users: dict[str, _OfUser] = {}

    def __iter__(self) -> Iterator[Instance]:
        return (record.instance for record in self._all.values())

    def find(self, instance_id: str) -> Instance | None:
        """One that has ended lately."""
        record = self._all.get(instance_id)
        return None if record is None else record.instance

    def bytes_of(self, user: str) -> int:
        """Memory that a user's records take, about."""
        records = self._users[user].records.values() if user in self._users else ()
        return sum(record.size_bytes for record in records)

    def keep(self, instance: Instance) -> None:
        """Keeps the record of an instance; older ones make room."""
        record = self._all[instance.id] = _Record(instance, record_bytes(instance))
        of_user = self._users.setdefault(instance.user, _OfUser())
        of_user.records[instance.id] = record
        of_user.size_bytes += record.size_bytes
        while len(self._all) > MOST:
            most = max(self._users.values(), key=lambda user: len(user.records))
            self._forget(next(iter(most.records.values())))
        if self._size_bytes() > MOST_BYTES:
            self._make_room(MOST_BYTES // 2)

    def forget(self, instance_id: str) -> None:
        """Drops a record, if there is one."""
        if (record := self._all.get(instance_id)) is not None:
            self._forget(record)

    def _make_room(self, size_bytes: int) -> None:
        """Drops the oldest records of the user with the most, but for those that a client reads."""
        for user in self._users.values():
            user.count()
        unread = {
            name: iter([r for r in user.records.values() if not r.instance.client.attached])
            for name, user in self._users.items()
        }
        left = self._size_bytes()
        while left > size_bytes and unread:
            name = max(unread, key=lambda name: self._users[name].size_bytes)
            record = next(unread[name], None)
            if record is None or name not in self._users:
                del unread[name]
                continue
            left -= record.size_bytes
            self._forget(record)
            record.instance.outbox.drop(but=1)
            if name not in self._users:
                del unread[name]

    def _size_bytes(self) -> int:
        return sum(user.size_bytes for user in self._users.values())

    def _forget(self, record: _Record) -> None:
        instance = record.instance
        del self._all[instance.id]
        of_user = self._users[instance.user]
        del of_user.records[instance.id]
        of_user.size_bytes -= record.size_bytes
        if not of_user.records:
            del self._users[instance.user]
        self._forgotten(instance)


def record_bytes(instance: Instance) -> int:
    """Memory that the record of an ended instance takes, about, without messages not fetched."""
    result = 0 if instance.ended is None else sys.getsizeof(instance.ended.text)
    shown = instance.log.size_bytes + instance.outbox.sent_size + instance.timeline.size_bytes
    shown += instance.released.size_bytes
    return OWN_BYTES + result + argument_bytes(instance.args) + shown


def loggable(text: str) -> str:
    """A failure's reason for the log: none of the program's words, which may have secrets."""
    if text.startswith("trap: "):
        return text[:300]
    code = _CODE.match(text)
    return "an error of the program" if code is None else code[0]


class PendingCleanup:
    """Instances from their end until what they owned is free, which happens by and by."""

    def __init__(self, free: Callable[[Instance, Guest | None], None]) -> None:
        """Takes what frees all that an instance owned, its guest included."""
        self._free = free
        self._guests: dict[Instance, Guest | None] = {}

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._guests

    def add(self, instance: Instance) -> None:
        """An instance has ended; its guest has no more turn."""
        self._guests[instance], instance.guest = instance.guest, None

    def free(self, instance: Instance) -> None:
        """Frees what an instance owned, unless that has been done."""
        if instance in self._guests:
            self._free(instance, self._guests.pop(instance))

    def free_until(self, enough: Callable[[], bool], user: str | None = None) -> None:
        """Frees what instances owned, of a user or of all, until there is enough."""
        for instance in [] if enough() else list(self._guests):
            if user is None or instance.user == user:
                self.free(instance)
                if enough():
                    return
