"""Texts under way: in order, bounded, each to exactly one taker, none lost if it is given up."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from pie_control.errors import ApiError
from pie_control.instances.futures import Future
from pie_control.instances.mailbox import MessageBytes, kept_bytes

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance

OWN_BYTES = 900  # that a channel takes without a message, with its place in tables, about

# An instance takes a text: called with it, if the text lies elsewhere, too.
Taken: TypeAlias = Callable[["Instance"], None]
# Number in its channel, text, bytes it counts.
Message: TypeAlias = tuple[int, str, int, Taken | None]

MAX_TOPIC_BYTES = 256


def check_topic(topic: str) -> None:
    """Refuses what is no topic. Raises ApiError `invalid-argument`."""
    size = len(topic.encode())
    if not 0 < size <= MAX_TOPIC_BYTES:
        raise ApiError(
            "invalid-argument", f"a topic of {size} bytes; 1 to {MAX_TOPIC_BYTES} are allowed"
        )


class Budget:
    """Bytes that several channels hold together."""

    __slots__ = ("_of_user", "limit", "used")

    def __init__(self, limit: int, of_user: MessageBytes | None = None) -> None:
        """Holds nothing yet. `of_user`: counts these bytes, and those of the user's mailboxes."""
        self.limit = limit
        self.used = 0
        self._of_user = of_user

    @property
    def has_room(self) -> bool:
        """True if a channel may take a message."""
        return self.used < self.limit and (self._of_user is None or self._of_user.has_room)

    def add(self, size: int) -> None:
        """So many bytes are held more, or fewer."""
        self.used += size
        if self._of_user is not None:
            self._of_user.remove(-size)


class Channel:
    """A bounded queue of texts, read through futures.

    A text belongs to the channel until the future that it was given to is taken: until then it
    counts against the bounds, and a future that is cancelled gives it back to its old place.
    Futures are served in the order in which they came.
    """

    def __init__(
        self, max_messages: int, max_bytes: int, budget: Budget, on_change: Callable[[], None]
    ) -> None:
        """Takes the bounds, and what to call when there may be room or nothing left."""
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._budget = budget
        self._on_change = on_change
        self._numbers = 0
        self._waiting: list[Message] = []  # a heap: what was given back is the oldest again
        self._waiting_bytes = 0
        # None while a message waits.
        self._takers: OrderedDict[Future, Instance] = OrderedDict()
        self._closed = False
        self.count = 0  # messages, those in futures not taken yet included
        self.bytes = 0  # of the same

    @property
    def has_room(self) -> bool:
        """True if `put` may be called. The message that fills the channel may go over the bytes."""
        return (
            self.count < self._max_messages
            and self.bytes < self._max_bytes
            and self._budget.has_room
        )

    @property
    def is_idle(self) -> bool:
        """True if it is empty and no puller waits for it."""
        return not self.count and not self._takers

    def put(self, text: str, taken: Taken | None = None) -> None:
        """Appends a text. The caller has looked at `has_room`."""
        self._numbers += 1
        size = kept_bytes(text)
        self.count += 1
        self.bytes += size
        self._budget.add(size)
        self._wait((self._numbers, text, size, taken))

    def take_by(self, instance: Instance, future: Future) -> None:
        """Gives an instance's future the oldest text, at once or when there is one."""
        future.on_cancel = partial(self._forget, future)
        self._takers[future] = instance
        self._serve()

    def close(self, error: ApiError) -> None:
        """Drops queued messages and fails waiting futures; ready futures keep theirs."""
        self._closed = True
        self.count -= len(self._waiting)
        self.bytes -= self._waiting_bytes
        self._budget.add(-self._waiting_bytes)
        self._waiting, self._waiting_bytes = [], 0
        takers, self._takers = self._takers, OrderedDict()
        for future in takers:
            future.on_cancel = None
            future.fail(error)

    def _wait(self, message: Message) -> None:
        heapq.heappush(self._waiting, message)
        self._waiting_bytes += message[2]
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._takers:
            message = heapq.heappop(self._waiting)
            self._waiting_bytes -= message[2]
            future, taker = self._takers.popitem(last=False)
            future.on_cancel = partial(self._give_back, message)
            future.on_take = partial(self._is_taken, message, taker)
            future.resolve(message[1])

    def _forget(self, future: Future) -> None:
        self._takers.pop(future, None)
        self._on_change()

    def _give_back(self, message: Message) -> None:
        if self._closed:
            self._release(message)
        else:
            self._wait(message)

    def _is_taken(self, message: Message, taker: Instance) -> None:
        if message[3] is not None:
            message[3](taker)
        self._release(message)

    def _release(self, message: Message) -> None:
        size = message[2]
        self.count -= 1
        self.bytes -= size
        self._budget.add(-size)
        self._on_change()
