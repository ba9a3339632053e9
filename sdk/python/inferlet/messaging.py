"""Messages between the instances of one user: topics that are broadcast to, and work queues.

::

    await messaging.push("work", "a task")          # exactly one instance gets it
    task = await messaging.pull("work")

    with messaging.subscribe("news") as news:       # every subscriber gets everything
        await messaging.broadcast("news", "hello")
        async for text in news:
            ...

Messages live in the server's memory. What must survive it belongs in `store`.
"""

from __future__ import annotations

from typing import Any

from inferlet import raw
from inferlet._generated import awaited
from inferlet._generated.awaited import pull
from inferlet._json import dumps
from inferlet.errors import PieError

__all__ = ["Subscription", "broadcast", "pull", "push", "subscribe"]


async def push(topic: str, message: Any) -> None:
    """Appends a message to the work queue of a topic: text as it is, anything else as JSON.

    Waits while the queue is full; other tasks run meanwhile. Cancelled, it has pushed nothing.

    Raises:
        PieError: `invalid-argument` (topic), `limit-exceeded` (message too large, too many queues).
    """
    await awaited.push(topic, _text(message))


async def broadcast(topic: str, message: Any) -> int:
    """Sends to every current subscriber of a topic and returns how many there are; may be none.

    Text goes as it is, anything else as JSON. Waits while a subscriber has too much unread, so
    that none misses a message; other tasks run meanwhile. Cancelled, it has sent nothing.

    Raises:
        PieError: `invalid-argument` (topic), `limit-exceeded` (message too large).
    """
    return await awaited.broadcast(topic, _text(message))


def subscribe(topic: str) -> Subscription:
    """Subscribes to what is broadcast from now on.

    Raises:
        PieError: `invalid-argument` (topic), `limit-exceeded` (too many subscriptions).
    """
    return Subscription(topic)


class Subscription:
    """Messages broadcast to a topic. Iterate over it, or call `receive`; close it, or use `with`.

    One that is not read makes the broadcasters wait once its box is full. Dropping the last
    reference closes it, too.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._handle: int | None = None  # should the next line fail
        self._handle = raw.subscribe(topic)

    async def receive(self) -> str:
        """The next message. Cancelled, it leaves it for the next call.

        Raises:
            PieError: `invalid-handle` after `close`; `cancelled` if it is closed meanwhile.
        """
        if self._handle is None:
            raise PieError(f"invalid-handle: the subscription to {self.topic!r} is closed")
        return await awaited.next_message(self._handle)

    def close(self) -> None:
        """Unsubscribes and drops what has not been read. Idempotent."""
        if self._handle is not None:
            raw.unsubscribe(self._handle)
            self._handle = None

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> str:
        if self._handle is None:
            raise StopAsyncIteration
        return await self.receive()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _text(message: Any) -> str:
    return message if isinstance(message, str) else dumps(message, str)
