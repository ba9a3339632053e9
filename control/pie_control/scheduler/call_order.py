"""The order of calls across an instance's queues that touch the same pages or embeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_control.commands.command import Account, Command, Numbers


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

    Kept for instances with several queues only.
    """

    def __init__(self, pages: int, embeds: int) -> None:
        """Takes how many names pages (with host pages) and embeds (with samplers) have."""
        self._page_writes = _LastTouch(pages)
        self._page_uses = _LastTouch(pages)  # reads and writes
        self._embed_writes = _LastTouch(embeds)
        self._embed_uses = _LastTouch(embeds)

    def record(self, account: Account, command: Command) -> None:
        """Records what a numbered command touches, and up to which number others go first."""
        number, queue = command.number, command.queue
        own = queue.id
        pages_read, embeds_read = command.read()
        pages_written, embeds_written = command.written()
        if any(other is not queue for other in account.active):
            command.after = max(
                account.barrier,
                self._page_writes.by_others(pages_read, own),
                self._embed_writes.by_others(embeds_read, own),
                self._page_uses.by_others(pages_written, own),
                self._embed_uses.by_others(embeds_written, own),
            )
        self._page_uses.note(pages_read, own, number)
        self._embed_uses.note(embeds_read, own, number)
        self._page_uses.note(pages_written, own, number)
        self._embed_uses.note(embeds_written, own, number)
        self._page_writes.note(pages_written, own, number)
        self._embed_writes.note(embeds_written, own, number)


class _LastTouch:
    """For each name, the newest command that touched it, and the newest one of any other queue.

    The second is needed because the newest one hides older ones of other queues: B reads a page
    with command 5, A reads it with 6, A writes it with 7. The newest that A's write finds is its
    own 6, which it need not wait for; it must wait for 5.
    """

    __slots__ = ("_newest", "_of_another", "_queue")

    def __init__(self, names: int) -> None:
        self._newest: NDArray[np.int64] = np.zeros(names, np.int64)  # number of that command
        self._queue: NDArray[np.int64] = np.zeros(names, np.int64)  # the queue it is in
        self._of_another: NDArray[np.int64] = np.zeros(names, np.int64)  # newest of other queues

    def by_others(self, names: Numbers, queue: int) -> int:
        """The newest command that touched one of the names and is not in the queue; 0 for none."""
        if not names:
            return 0
        if len(names) == 1:  # a step's embeds: scalars cost a tenth of arrays
            name = names[0]
            own = self._queue.item(name) == queue
            return (self._of_another if own else self._newest).item(name)
        own_names = self._queue[names] == queue
        return int(np.where(own_names, self._of_another[names], self._newest[names]).max())

    def note(self, names: Numbers, queue: int, number: int) -> None:
        """Notes that a command of the queue, newer than all so far, touches the names."""
        if not names:
            return
        if len(names) == 1:
            name = names[0]
            if self._queue.item(name) != queue:
                self._of_another[name] = self._newest.item(name)
                self._queue[name] = queue
            self._newest[name] = number
            return
        touched = np.array(names)
        changed = touched[self._queue[touched] != queue]
        if len(changed):
            self._of_another[changed] = self._newest[changed]
            self._queue[changed] = queue
        self._newest[touched] = number
