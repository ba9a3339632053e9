"""Messages that durable instances have pushed into work queues, in a journal of their own.

A message leaves it once it was taken, and the journal of a durable taker says so by then. Its
entries are `push`, user, topic, sender, number, message, and `gone`, sender, number.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import structlog

from pie_control.api.messaging.channel import Taken
from pie_control.api.messaging.functions import Bus
from pie_control.instances.instance import Instance
from pie_control.journal.file import DamagedJournal, JournalFile, Writer, read_entries

log = structlog.get_logger("pie.durable")

SPARE_BYTES = 1 << 20  # of the file, in addition to what waits, before it is written again
Origin = tuple[str, int]  # a durable instance, and the number of its call


class Queues:
    """The messages of durable instances that wait in work queues."""

    def __init__(self, bus: Bus, path: Path, writer: Writer) -> None:
        self._bus = bus
        self._held: dict[Origin, tuple[str, str, str]] = {}  # user, topic, message
        self._done: dict[str, int] = {}  # the number of each sender's last message
        self._journal = JournalFile(path, 0, writer.changed)
        self._held_bytes = 0

    def read(self) -> None:
        """Reads what a server before this one has left; for a thread."""
        path = self._journal.path
        try:
            entries, self._journal.size = read_entries(path.read_bytes())
        except FileNotFoundError:
            return
        except DamagedJournal as error:
            log.error("messages of work queues are lost", reason=str(error))
            path.rename(path.with_name(path.name + ".damaged"))
            entries = list(error.entries)
        for kind, *rest in entries:
            if kind == "push":
                user, topic, sender, number, message = rest
                self._held[sender, number] = user, topic, message
                self._done[sender] = number
            elif kind == "done":
                self._done[rest[0]] = rest[1]
            else:
                self._held.pop((rest[0], rest[1]), None)

    def begin(self, pulled: Iterable[Origin], senders: Iterable[str]) -> None:
        """Queues what waits, but for what durable instances have taken by their journals; those
        that have journals may push again what they have pushed.
        """
        for origin in pulled:
            self._held.pop((origin[0], origin[1]), None)
        known = set(senders)
        self._done = {name: number for name, number in self._done.items() if name in known}
        for origin, (user, topic, message) in self._held.items():
            self._held_bytes += len(message)
            self._bus.push_again(user, topic, message, self._taken_of(origin))
        if self._journal.size:
            self._shorten()

    def _shorten(self) -> None:
        pushes = [["push", *facts[:2], *origin, facts[2]] for origin, facts in self._held.items()]
        self._journal.replace([*pushes, *(["done", *each] for each in self._done.items())])

    def push(self, instance: Instance, origin: Origin, topic: str, message: str) -> None:
        """Queues a message, unless it was queued before. Raises ApiError as `Bus.push`."""
        if self._done.get(origin[0], 0) >= origin[1]:
            return
        self._bus.push_kept(instance, topic, message, self._taken_of(origin))
        self._done[origin[0]] = origin[1]
        self._held[origin] = instance.user, topic, message
        self._held_bytes += len(message)
        self._journal.append("push", instance.user, topic, *origin, message)

    def _taken_of(self, origin: Origin) -> Taken:
        return partial(self._taken, origin)

    def _taken(self, origin: Origin, taker: Instance) -> None:
        durable = taker.durable
        if durable is None:
            self._gone(origin)
        else:
            durable.source = origin
            durable.taken = partial(self._gone, origin)

    def _gone(self, origin: Origin) -> None:
        self._held_bytes -= len(self._held.pop(origin)[2])
        self._journal.append("gone", *origin)
        if self._journal.size > 2 * self._held_bytes + SPARE_BYTES:
            self._shorten()
