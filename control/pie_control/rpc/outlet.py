"""The stream of an instance's messages to its client: a window of numbered items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pie_control.instances.instance import Ended as InstanceEnded
from pie_control.instances.instance import Event, Instance
from pie_py.wire.rpc import Ended, Item, Items, size_of

if TYPE_CHECKING:
    from pie_control.rpc.session import Session

MAX_WINDOW = 1024  # items sent and not acknowledged
WINDOW_BYTES = 1 << 20  # sent and not acknowledged; one item may go over it
FRAME_BYTES = 256 << 10  # of several items joined in one message


class Outlet:
    """The stream of one instance, read by one session at a time.

    Back-pressure: items leave the instance's mailbox only while the window has room, so a reader
    that does not read fills the mailbox, and the mailbox tells the instance `would-block`.
    """

    def __init__(self, instance: Instance, wake: Callable[[Outlet], None]) -> None:
        """Takes what to call when there may be something to send."""
        self.instance = instance
        self.reader: Session | None = None
        self.lives_alone = False  # launched to live on without a client
        self._wake = wake
        self._watching = False
        self._paused = False
        self._window = 0
        self._unacked: deque[tuple[Item, int]] = deque()
        self._unacked_bytes = 0
        self._acked = 0  # number of the first item in `_unacked`
        self._next = 0  # number of the next item to send

    @property
    def next_number(self) -> int:
        """Number of the item that is sent next."""
        return self._next

    @property
    def finished(self) -> bool:
        """Whether the last item has been acknowledged."""
        return (
            self.instance.ended is not None and not self._unacked and not len(self.instance.outbox)
        )

    def attach(self, session: Session, window: int, received: int | None = None) -> None:
        """Makes a session the reader, from the item `received` on or all not acknowledged."""
        self.reader = session
        self._window = max(1, min(window, MAX_WINDOW))
        if received is not None:
            self.acknowledge(received)
        self._next = self._acked
        self._paused = False
        self.present()
        self._wake(self)

    def pause(self) -> None:
        """The reader has a new connection: sends nothing until it tells what it has received."""
        self._paused = True

    def resume(self, received: int, consumed: int) -> None:
        """The reader is back: goes on from what it has not received."""
        self.acknowledge(consumed)
        self._paused = False
        self._next = min(max(received, self._acked), self._acked + len(self._unacked))
        self.present()
        self._wake(self)

    def present(self) -> None:
        """The reader is there."""
        self.instance.client.attached = True
        self.instance.client.left_at = None

    def absent(self, now: float) -> None:
        """The reader has vanished, for now or for good."""
        self.instance.client.attached = False
        if not self.lives_alone and self.instance.parent is None:  # a child ends with its parent
            self.instance.client.left_at = now

    def detach(self, now: float) -> None:
        """The reader leaves for good."""
        self.reader = None
        self.absent(now)

    def acknowledge(self, consumed: int) -> None:
        """Forgets the items below a number, but none that was never sent."""
        while self._unacked and self._acked < consumed and self._acked < self._next:
            _, size = self._unacked.popleft()
            self._unacked_bytes -= size
            self._acked += 1
        self._wake(self)

    def take(self) -> Items | None:
        """The next message to send, or None if there is nothing to send or the window is full."""
        if self._paused:
            return None
        first = self._next
        items: list[Item] = []
        size = 0
        offset = first - self._acked
        while size < FRAME_BYTES:
            if offset < len(self._unacked):  # sent before, to a connection that is gone
                item, item_size = self._unacked[offset]
            else:
                if len(self._unacked) >= self._window or self._unacked_bytes >= WINDOW_BYTES:
                    break
                event = self.instance.outbox.pop()
                if event is None:
                    self._watch()
                    break
                item, item_size = _as_item(event)
                self._unacked.append((item, item_size))
                self._unacked_bytes += item_size
            items.append(item)
            size += item_size
            offset += 1
        self._next = first + len(items)
        return Items(self.instance.id, first, items) if items else None

    def _watch(self) -> None:
        last = self._unacked[-1][0] if self._unacked else None
        if not self._watching and not isinstance(last, Ended):  # nothing comes after that
            self._watching = True
            self.instance.outbox.when_item(self._on_item)

    def _on_item(self) -> None:
        self._watching = False
        self._wake(self)


def _as_item(event: Event) -> tuple[Item, int]:
    """What a client is sent of an event, and its bytes."""
    if isinstance(event, InstanceEnded):
        return Ended(event.state.value, event.text), size_of(event.text)
    return event, size_of(event)
