"""A bounded mailbox between an instance and its client, so that neither can grow the server's memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from pie_control.errors import ApiError

Item = TypeVar("Item")


class Mailbox(Generic[Item]):
    """Items in order, bounded by their number and their bytes.

    One-shot callbacks (`when_item`, `when_room`) serve the instance's futures; `next` and `room` are
    the same for trio tasks. A callback is called at once if its condition holds already.
    """

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._items: deque[tuple[int, Item, int]] = deque()  # number, item, bytes; by number
        self._numbers = 0
        self._bytes = 0
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._item_callbacks: deque[Callable[[], None]] = deque()
        self._room_callbacks: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_room(self) -> bool:
        """Whether `put` accepts an item. One that fills the mailbox may go over the bytes."""
        return len(self._items) < self._max_items and self._bytes < self._max_bytes

    def put(self, item: Item, size: int, *, force: bool = False) -> None:
        """Appends an item of `size` bytes. `force` is for the one last event of an instance.

        Raises:
            ApiError: `would-block` if the mailbox is full.
        """
        if not self.has_room and not force:
            raise ApiError(
                "would-block",
                f"{len(self._items)} messages ({self._bytes} bytes) wait for a reader already",
            )
        self._numbers += 1
        self._items.append((self._numbers, item, size))
        self._bytes += size
        self._fire(self._item_callbacks, lambda: bool(self._items))

    def pop(self) -> Item | None:
        """Removes and returns the oldest item, or returns None."""
        numbered = self.pop_numbered()
        return None if numbered is None else numbered[1]

    def pop_numbered(self) -> tuple[int, Item] | None:
        """As `pop`, with the item's number, for `put_back`."""
        if not self._items:
            return None
        number, item, size = self._items.popleft()
        self._bytes -= size
        self._fire(self._room_callbacks, lambda: self.has_room)
        return number, item

    def put_back(self, number: int, item: Item, size: int) -> None:
        """Puts an item into its old place: whoever popped it has no use for it."""
        place = 0
        while place < len(self._items) and self._items[place][0] < number:
            place += 1
        self._items.insert(place, (number, item, size))
        self._bytes += size
        self._fire(self._item_callbacks, lambda: bool(self._items))

    @property
    def size_bytes(self) -> int:
        """Bytes of all items."""
        return self._bytes

    def drop_all_but_last(self) -> None:
        """Forgets what nobody will read, except for the newest item."""
        while len(self._items) > 1:
            self.pop()

    def when_item(self, callback: Callable[[], None]) -> None:
        """Calls back once, as soon as there is an item."""
        self._item_callbacks.append(callback)
        self._fire(self._item_callbacks, lambda: bool(self._items))

    def when_room(self, callback: Callable[[], None]) -> None:
        """Calls back once, as soon as there is room."""
        self._room_callbacks.append(callback)
        self._fire(self._room_callbacks, lambda: self.has_room)

    def forget(self, callback: Callable[[], None]) -> None:
        """Withdraws a callback that has not been called."""
        for callbacks in (self._item_callbacks, self._room_callbacks):
            if callback in callbacks:
                callbacks.remove(callback)

    async def next(self) -> Item:
        """Waits for the oldest item and removes it. Cancelled, it removes nothing."""
        while True:
            await self._until(self.when_item)
            item = self.pop()
            if item is not None:
                return item

    async def room(self) -> None:
        """Waits until there is room."""
        await self._until(self.when_room)

    async def _until(self, when: Callable[[Callable[[], None]], None]) -> None:
        event = trio.Event()
        when(event.set)
        try:
            await event.wait()
        finally:
            self.forget(event.set)

    def _fire(self, callbacks: deque[Callable[[], None]], condition: Callable[[], bool]) -> None:
        while callbacks and condition():
            callbacks.popleft()()
