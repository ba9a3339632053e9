"""The order of calls across an instance's queues that touch the same pages or embeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_control.scheduler.commands.command import Command, Numbers, Touched


class CallOrder:
    """Finds out which commands must wait for other queues of their instance.

    Queues run independently where they touch different pages and embeds. Where they touch the same,
    and one of them writes, the order of the calls counts. So no instance can read what the last
    owner of a page left there by reading it before its own write has been sent.

    A queue is in order by itself. What it did to a page or embed is therefore no reason for one of
    its own commands to wait: only what *other* queues did is. If a queue's own commands counted,
    every forward would wait for all queues of the instance that have an older command, because the
    embed that it reads has just been written by its own queue; contexts would run one after the
    other.

    What other *instances* did is no reason either. A page that another one has written was given to
    this one once all that touched it was sent; and one that several hold cannot be written. If
    theirs counted, a context would wait for all older commands of its own instance, a long run
    among them, because a stranger had its page before.

    Kept for instances with several queues only: `note` tells of what is queued when an instance
    opens its second one.
    """

    def __init__(self, pages: int, embeds: int) -> None:
        self._page_writes = _LastTouch(pages)
        self._page_uses = _LastTouch(pages)  # reads and writes
        self._embed_writes = _LastTouch(embeds)
        self._embed_uses = _LastTouch(embeds)

    def record(self, command: Command) -> None:
        """Notes what a command touches, and up to which number those of other queues go first."""
        own = command.queue.account.id, command.queue.id
        read, written = command.read(), command.written()
        if any(other is not command.queue for other in command.queue.account.active):
            command.after = max(
                self._page_writes.by_others(read[0], own),
                self._embed_writes.by_others(read[1], own),
                self._page_uses.by_others(written[0], own),
                self._embed_uses.by_others(written[1], own),
            )
        self._touch(command.number, own, read, written)

    def note(self, command: Command) -> None:
        """Notes what a command touches that is before all that are recorded."""
        own = command.queue.account.id, command.queue.id
        self._touch(command.number, own, command.read(), command.written())

    def _touch(self, number: int, own: tuple[int, int], read: Touched, written: Touched) -> None:
        self._page_uses.note(read[0], own, number)
        self._embed_uses.note(read[1], own, number)
        self._page_uses.note(written[0], own, number)
        self._embed_uses.note(written[1], own, number)
        self._page_writes.note(written[0], own, number)
        self._embed_writes.note(written[1], own, number)


class _LastTouch:
    """For each name, the newest command that touched it, and the newest one of any other queue of
    the same instance.

    The second is needed because the newest one hides older ones of other queues: B reads a page
    with command 5, A reads it with 6, A writes it with 7. The newest that A's write finds is its
    own 6, which it need not wait for; it must wait for 5.
    """

    __slots__ = ("_instance", "_newest", "_of_another", "_queue")

    def __init__(self, names: int) -> None:
        self._newest: NDArray[np.int64] = np.zeros(names, np.int64)  # number of that command
        self._instance: NDArray[np.int64] = np.zeros(names, np.int64)  # its instance's account
        self._queue: NDArray[np.int64] = np.zeros(names, np.int64)  # the queue it is in
        self._of_another: NDArray[np.int64] = np.zeros(names, np.int64)  # newest of other queues

    def by_others(self, names: Numbers, own: tuple[int, int]) -> int:
        """The newest command of another queue of the instance that touched a name; 0 for none."""
        if not names:
            return 0
        instance, queue = own
        if len(names) == 1:  # a step's embeds: scalars cost a tenth of arrays
            name = names[0]
            if self._instance.item(name) != instance:
                return 0
            is_own = self._queue.item(name) == queue
            return (self._of_another if is_own else self._newest).item(name)
        is_own = self._queue[names] == queue
        newest = np.where(is_own, self._of_another[names], self._newest[names])
        return int((newest * (self._instance[names] == instance)).max())

    def note(self, names: Numbers, own: tuple[int, int], number: int) -> None:
        """Notes that a command of a queue, newer than all so far, touches the names."""
        if not names:
            return
        instance, queue = own
        if len(names) == 1:
            name = names[0]
            if self._queue.item(name) != queue:
                is_own = self._instance.item(name) == instance
                self._of_another[name] = self._newest.item(name) if is_own else 0
                self._queue[name], self._instance[name] = queue, instance
            self._newest[name] = number
            return
        touched = np.array(names)
        changed = touched[self._queue[touched] != queue]
        if len(changed):
            is_own = self._instance[changed] == instance
            self._of_another[changed] = self._newest[changed] * is_own
            self._queue[changed], self._instance[changed] = queue, instance
        self._newest[touched] = number
