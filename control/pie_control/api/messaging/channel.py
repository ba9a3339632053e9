"""Texts under way: in order, bounded, each to exactly one taker, none lost if it is given up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pie_control.errors import ApiError, invalid
from pie_control.instances.futures import Future
from pie_control.instances.mailbox import Loan, Mailbox, MessageBytes

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance

OWN_BYTES = 1700  # that a channel takes without a message, with its place in tables, about

# An instance takes a text: called with it, if the text lies elsewhere, too.
Taken: TypeAlias = Callable[["Instance"], None]

MAX_TOPIC_BYTES = 256


def check_topic(topic: str) -> None:
    """Refuses what is no topic. Raises ApiError `invalid-argument`."""
    size = len(topic.encode())
    if not 0 < size <= MAX_TOPIC_BYTES:
        raise invalid(f"a topic of {size} bytes; 1 to {MAX_TOPIC_BYTES} are allowed")


class Channel(Mailbox[str]):
    """A mailbox of texts that many futures wait for, served in the order in which they came."""

    __slots__ = ("_closed", "_on_change", "_taken", "_takers")

    def __init__(
        self, max_messages: int, max_bytes: int, others: MessageBytes, on_change: Callable[[], None]
    ) -> None:
        """Takes the bounds, and what to call when there may be room or nothing left."""
        super().__init__(max_messages, max_bytes, others)
        self._on_change = on_change
        self._taken: dict[int, Taken] = {}  # by number
        self._takers: OrderedDict[Future, Instance] = OrderedDict()  # none while a text waits
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """True if it is empty and no puller waits for it."""
        return not self.count and not self._takers

    def put(self, item: str, taken: Taken | None = None, *, force: bool = True) -> None:
        """Appends a text. The caller has looked at `has_room`."""
        if taken is not None:
            self._taken[self._numbers + 1] = taken
        super().put(item, force=force)

    def take_by(self, instance: Instance, future: Future) -> None:
        """Gives an instance's future the oldest text, at once or when there is one."""
        future.on_cancel = partial(self._leave, future)
        self._takers[future] = instance
        self._call_for_items()

    def close(self, error: ApiError) -> None:
        """Drops queued messages and fails waiting futures; ready futures keep theirs."""
        self._closed = True
        self.drop()
        takers, self._takers = self._takers, OrderedDict()
        for future in takers:
            future.on_cancel = None
            future.fail(error)

    def put_back(self, loan: Loan[str]) -> None:
        """As a mailbox, unless it is closed."""
        if self._closed:
            self.release(loan)
        else:
            super().put_back(loan)

    def _call_for_items(self) -> None:
        while self._items and self._takers:
            loan = self.lend()
            future, taker = self._takers.popitem(last=False)
            future.on_cancel = partial(self.put_back, loan)
            future.on_take = partial(self._take, loan, taker)
            future.resolve(loan[1])

    def _leave(self, future: Future) -> None:
        self._takers.pop(future, None)
        self._on_change()

    def _take(self, loan: Loan[str], taker: Instance) -> None:
        if (taken := self._taken.pop(loan[0], None)) is not None:
            taken(taker)
        self.release(loan)

    def _are_gone(self, items: int, size: int) -> None:
        super()._are_gone(items, size)
        self._on_change()
