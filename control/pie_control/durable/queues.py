"""Calls of durable instances about topics and work queues; what they have pushed into these is in
a journal of its own.

A message leaves it once it was taken, and the journal of a durable taker says so by then. Its
entries are `push`, user, topic, sender, number, message, and `gone`, sender, number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pie_control.api.messaging.channel import Taken
from pie_control.api.messaging.functions import Bus
from pie_control.durable.waits import Call, answer_of, durable_of, note_answer, quiet
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.instances.turns import Executor
from pie_control.journal.file import DamagedJournal, JournalFile, Writer, read_entries
from pie_control.wasm.linker import SUSPENDED, HostFunction

log = structlog.get_logger("pie.durable")

SPARE_BYTES = 1 << 20  # of the file, in addition to what waits, before it is written again
Origin = tuple[str, int]  # a durable instance, and the number of its call


class Queues:
    """The messages of durable instances that wait in work queues."""

    def __init__(self, bus: Bus, path: Path, writer: Writer) -> None:
        self._bus = bus
        self._held: dict[Origin, tuple[str, str, str]] = {}  # user, topic, message
        self._done: dict[str, int] = {}  # the number of each sender's last message
        self.journal = JournalFile(path, 0, writer.changed)
        self._held_bytes = 0

    def read(self) -> None:
        """Reads what a server before this one has left; for a thread. Raises OSError."""
        path = self.journal.path
        try:
            entries, self.journal.size = read_entries(path.read_bytes())
        except FileNotFoundError:
            return
        except OSError as error:
            raise OSError(
                f"{path} cannot be read: {error.strerror}; let the server read it, or move it away:"
                " what waits in work queues is lost then"
            ) from None
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
        if self.journal.size or self._held or self._done:  # of a damaged file, too
            self._shorten()

    def _shorten(self) -> None:
        pushes = [["push", *facts[:2], *origin, facts[2]] for origin, facts in self._held.items()]
        self.journal.replace([*pushes, *(["done", *each] for each in self._done.items())])

    def write_again(self) -> None:
        """Writes what waits to a disk that did not take it, in a new file."""
        self.journal.problem = None
        self._shorten()

    def push(self, instance: Instance, origin: Origin, topic: str, message: str) -> None:
        """Queues a message, unless it was queued before. Raises ApiError as `Bus.push`."""
        if self._done.get(origin[0], 0) >= origin[1]:
            return
        self._bus.push_kept(instance, topic, message, self._taken_of(origin))
        self._done[origin[0]] = origin[1]
        self._held[origin] = instance.user, topic, message
        self._held_bytes += len(message)
        self.journal.append("push", instance.user, topic, *origin, message)

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
        self.journal.append("gone", *origin)
        if self.journal.size > 2 * self._held_bytes + SPARE_BYTES:
            self._shorten()


class MessageCalls:
    """Each message is sent once: it has a number, and its keeper knows of that."""

    def __init__(self, bus: Bus, queues: Queues, executor: Executor, writer: Writer) -> None:
        self._bus = bus
        self._queues = queues
        self._executor = executor
        self._writer = writer

    def taps(self) -> dict[str, Callable[[HostFunction], Call]]:
        """The functions that make each of them."""
        return {
            "messaging.subscribe": _subscribe,
            "messaging.push": partial(self._tells, self._push),
            "messaging.broadcast": partial(self._tells, self._broadcast),
        }

    def _push(self, instance: Instance, number: int, topic: str, message: str) -> None:
        self._queues.push(instance, (instance.id, number), topic, message)

    def _broadcast(self, instance: Instance, number: int, topic: str, message: str) -> int:
        return self._bus.broadcast_once(instance, topic, message, (instance.id, number))

    def _tells(self, tell: Callable[..., Any], function: HostFunction) -> Call:
        """A call that tells others something once all before is on disk; returns once theirs is."""
        name = function.full_name

        def call(instance: Instance, *args: Any) -> Any:
            durable, guest = durable_of(instance), instance.guest
            number = durable.open()
            before = durable.next_call(name, number)
            if before is not None:
                return answer_of(before.ok, before.value, function.result)

            def begin() -> None:
                if instance.guest is guest:
                    try:
                        value = tell(instance, number, *args)
                    except ApiError as error:
                        value = error
                    self._writer.when_settled(partial(told, value))

            def told(value: Any) -> None:
                if instance.guest is guest:
                    note_answer(instance, name, number, value)
                    self._executor.answer(instance, value)

            durable.journal.when_safe(begin)
            return SUSPENDED

        return call


def _subscribe(function: HostFunction) -> Call:
    """Subscribes in each life; what was heard since the first is there."""
    asked = quiet(function)

    def call(instance: Instance, topic: str) -> Any:
        handle = asked(instance, topic)
        durable = durable_of(instance)
        durable.subscribes(durable.open(), topic)
        return handle

    return call
