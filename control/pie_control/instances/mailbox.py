"""A bounded mailbox between an instance and its client: neither can grow the server's memory."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import trio

from pie_control.errors import ApiError

Item = TypeVar("Item")

Loan: TypeAlias = tuple[int, Item, int]  # number in its mailbox, item, bytes
SENT_CHARACTERS = 8192  # that are kept of what an instance has sent
SENT_PARTS = 64
BESIDE = 136  # bytes of memory that an item takes beside itself, about


def kept_bytes(item: object) -> int:
    """Memory that a waiting item takes: of a text four bytes for each character, if need be."""
    return sys.getsizeof(item) + BESIDE


class MessageBytes:
    """Bytes of messages in several mailboxes, with those that are lent; at most, all are full."""

    __slots__ = ("_most", "_waiting", "_within", "held")

    def __init__(self, most: int, within: MessageBytes | None = None) -> None:
        """Holds nothing yet; `most` bytes at the most, and what the last message has above that.
        They count `within` others, too.
        """
        self.held = 0
        self._most = most
        self._within = within
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def has_room(self) -> bool:
        """True if mailboxes may take an item."""
        return self.held < self._most and (self._within is None or self._within.has_room)

    def add(self, size: int) -> None:
        """So many are held more, or fewer. Calls those that wait, if there is room now."""
        self.held += size
        if self._within is not None:
            self._within.add(size)
        while self._waiting and self.has_room:
            callback = next(iter(self._waiting))
            del self._waiting[callback]
            callback()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Calls back once, when there is room again; a callback that waits already waits once."""
        self._waiting[callback] = None


class Mailbox(Generic[Item]):
    """Items in order, bounded by their number and their bytes, and by those of others.

    Items that were lent to futures count until the future is taken, which releases them.

    One-shot callbacks (`when_item`, `when_room`) serve the instance's futures; trio tasks have
    `room`. A callback is called at once if its condition holds already.
    """

    __slots__ = (
        *("_item_callbacks", "_items", "_max_bytes", "_max_items", "_numbers", "_others"),
        *("_room_callbacks", "bytes", "count"),
    )

    def __init__(self, max_items: int, max_bytes: int, others: MessageBytes | None = None) -> None:
        """Is empty. `others`: counts the bytes of this mailbox and of others."""
        self._items: deque[Loan[Item]] = deque()  # by number
        self._numbers = 0
        self.count = 0  # items, those lent to futures included
        self.bytes = 0  # of the same
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._others = others
        self._item_callbacks: list[Callable[[], None]] = []  # seldom more than one
        self._room_callbacks: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """True if `put` accepts an item. One that fills the mailbox may go over the bytes."""
        return (
            self.count < self._max_items
            and self.bytes < self._max_bytes
            and (self._others is None or self._others.has_room)
        )

    def put(self, item: Item, *, force: bool = False) -> None:
        """Appends an item; `force` is for what has to be there, full or not.

        Raises:
            ApiError: `would-block` if the mailbox is full.
        """
        if not self.has_room and not force:
            if self._others is not None and not self._others.has_room:
                raise ApiError(
                    "would-block",
                    f"{self._others.held} bytes of messages wait for readers in your instances"
                    " already, the most that one user may have here; read some",
                )
            raise ApiError(
                "would-block",
                f"{self.count} messages ({self.bytes} bytes) wait for a reader already",
            )
        self._numbers += 1
        size = kept_bytes(item)
        self._items.append((self._numbers, item, size))
        self.count += 1
        self.bytes += size
        if self._others is not None:
            self._others.add(size)
        self._call_for_items()

    def pop(self) -> Item | None:
        """Removes and returns the oldest item, or returns None."""
        if not self._items:
            return None
        _, item, size = self._items.popleft()
        self._are_gone(1, size)
        return item

    def lend(self) -> Loan[Item]:
        """Takes the oldest item, for `release` or `put_back`. There must be one."""
        return self._items.popleft()

    def release(self, loan: Loan[Item]) -> None:
        """A lent item is gone for good, and makes room."""
        self._are_gone(1, loan[2])

    def put_back(self, loan: Loan[Item]) -> None:
        """Puts a lent item back into its old place: the future that had it was cancelled."""
        place = 0
        while place < len(self._items) and self._items[place][0] < loan[0]:
            place += 1
        self._items.insert(place, loan)
        self._call_for_items()

    def drop(self, but: int = 0) -> None:
        """Drops all items but so many of the newest: no one will read them."""
        gone = [self._items.popleft()[2] for _ in range(len(self._items) - but)]
        self._are_gone(len(gone), sum(gone))

    def when_item(self, callback: Callable[[], None]) -> None:
        """Calls back once, as soon as there is an item."""
        if self._items:
            callback()
        else:
            self._item_callbacks.append(callback)

    def when_room(self, callback: Callable[[], None]) -> None:
        """Calls back once, as soon as there is room."""
        self._room_callbacks.append(callback)
        self._call_for_room()

    def leave_user(self) -> None:
        """Counts for its user no more: the instance has ended, and its record has a bound."""
        if self._others is not None:
            self._others.add(-self.bytes)
            self._others = None

    def forget(self, callback: Callable[[], None]) -> None:
        """Withdraws a callback that has not been called."""
        for callbacks in (self._item_callbacks, self._room_callbacks):
            if callback in callbacks:
                callbacks.remove(callback)

    async def room(self) -> None:
        """Waits until there is room."""
        event = trio.Event()
        self.when_room(event.set)
        try:
            await event.wait()
        finally:
            self.forget(event.set)

    def _are_gone(self, items: int, size: int) -> None:
        """Items count no more, which makes room."""
        self.count -= items
        self.bytes -= size
        if self._others is not None:
            self._others.add(-size)
        if self._room_callbacks:
            self._call_for_room()

    def _call_for_items(self) -> None:
        while self._item_callbacks and self._items:
            self._item_callbacks.pop(0)()

    def _call_for_room(self) -> None:
        while self._room_callbacks and self.has_room:
            self._room_callbacks.pop(0)()
        if self._room_callbacks and self._others is not None and not self._others.has_room:
            self._others.when_room(self._call_for_room)


class Outbox(Mailbox[Any]):
    """Messages of an instance to its client; and the newest of those sent: people look at them,
    and take it from no client.
    """

    __slots__ = ("_sent", "sent_size", "sent_total")

    def __init__(self, max_items: int, max_bytes: int, others: MessageBytes | None = None) -> None:
        """Is empty, as a `Mailbox`."""
        super().__init__(max_items, max_bytes, others)
        self._sent: list[str] = []
        self.sent_size = 0  # characters that are kept
        self.sent_total = 0  # characters sent so far

    def send(self, message: str | bytes) -> None:
        """Appends a message. Raises ApiError `would-block`."""
        self.put(message)
        text = message if isinstance(message, str) else f"[{len(message)} bytes]"
        self.sent_total += len(text)
        self.sent_size += len(text)
        self._sent.append(text)
        if self.sent_size > 2 * SENT_CHARACTERS or len(self._sent) > SENT_PARTS:
            self._sent = [self.sent]
            self.sent_size = len(self._sent[0])

    @property
    def sent(self) -> str:
        """The newest of what it has sent."""
        return "".join(self._sent)[-SENT_CHARACTERS:]
