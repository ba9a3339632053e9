"""The client's end of the stream of one instance's messages. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pie_py.client.calls import Call
from pie_py.client.errors import ClientError, RpcError
from pie_py.wire.rpc import Ack, Ended, Items, Message, Resume, size_of

MOST_KEPT = 256 << 20  # bytes of messages that are not read
WINDOW = 256  # messages that may be sent and not acknowledged


class StreamSession(Protocol):
    """A session, as its streams see it."""

    facts: dict[str, Any]  # from the server's welcome

    def tell(self, message: Message) -> None:
        """Sends a message that needs no answer."""

    def request(self, method: str, params: dict[str, Any]) -> Call:
        """Opens a request."""

    def close_stream(self, instance: str) -> None:
        """From now on no stream gets an instance's items."""


class Asks(Protocol):
    """A connection, as a stream that moves sees it."""

    session: Any

    async def request(self, method: str, *, read: Callable[[Any], Any], **params: Any) -> Any:
        """Asks the server."""


class Stream:
    """Messages in order, none twice and none missing, over reconnections too.

    Back-pressure: the server sends no more than a window of messages that are not acknowledged, and
    a message is acknowledged when the program takes it (`take`); while `eager` is true, when it
    arrives.
    """

    def __init__(self, session: StreamSession, instance: str, first: int = 0) -> None:
        """A stream whose next item has the number `first`; `Session.open_stream` starts it."""
        self.instance = instance
        self.durable = False  # it goes on after a restart of the server, and this stream with it
        self.ended: Ended | None = None
        self.error: ClientError | None = None  # why no more can come though the instance may live
        self.on_news: Callable[[], None] = lambda: None  # called when something has arrived
        self.session = session
        self._messages: deque[str | bytes] = deque()
        self._eager = 0
        # Numbers and sums of bytes of what has arrived, of what the program has taken, and of what
        # the server was told to forget.
        self._received, self._received_bytes = first, 0
        self._consumed, self._consumed_bytes = first, 0
        self._acked, self._acked_bytes = first, 0

    @property
    def is_open(self) -> bool:
        """True if more may arrive."""
        return self.ended is None and self.error is None

    def __len__(self) -> int:
        """Messages that have arrived and were not taken."""
        return len(self._messages)

    def take(self) -> str | bytes:
        """Removes and returns the oldest message. There must be one."""
        message = self._messages.popleft()
        self._consumed += 1
        self._consumed_bytes += size_of(message)
        self._acknowledge(self._consumed, self._consumed_bytes)
        return message

    def set_eager(self, eager: bool) -> None:
        """Takes messages in without the window's limit, or no more; calls of both kinds pair up."""
        self._eager += 1 if eager else -1
        if self._eager:
            self._acknowledge(self._received, self._received_bytes)

    def detach(self) -> None:
        """Stops reading: the client that attaches next gets what was not taken here."""
        if self._consumed > self._acked:
            self._acked = self._consumed
            self.session.tell(Ack(self.instance, self._acked))
        self.session.close_stream(self.instance)

    # From the session

    def receive(self, items: Items) -> None:
        """Takes items in; those that came before are dropped."""
        if items.first > self._received:  # a gap: the server sends them again after `Resume`
            return
        for item in items.items[self._received - items.first :]:
            self._received += 1
            if isinstance(item, Ended):
                self.ended = item
                self.session.close_stream(self.instance)
                self.session.tell(Ack(self.instance, self._received))
                break
            self._messages.append(item)
            self._received_bytes += size_of(item)
        if self._received_bytes - self._consumed_bytes > MOST_KEPT and self.ended is None:
            self.session.close_stream(self.instance)
            self.close(
                ClientError(f"{self.instance} has sent {MOST_KEPT >> 20} MB that nobody has read")
            )
            return
        if self._eager:
            self._acknowledge(self._received, self._received_bytes)
        self.on_news()

    def resume(self, *, same_session: bool) -> None:
        """The connection is back: says where the stream goes on, or attaches to it once more."""
        if same_session:
            # An acknowledgement may have been lost with the connection.
            consumed = max(self._consumed, self._acked)
            self.session.tell(Resume(self.instance, self._received, consumed))
            return
        params = {"instance": self.instance, "window": WINDOW, "received": self._received}
        self.session.request("attach", params).then = self._reattached

    async def move(self, connection: Asks) -> None:
        """Goes on at another node, that has the instance now. Raises `ClientError` if it cannot."""

        def read(answer: dict[str, Any]) -> None:
            self.session = connection.session
            connection.session.open_stream(self)
            if answer["state"] != "running":
                self.finish(answer["state"], answer["text"])

        params: dict[str, Any] = {"window": WINDOW, "received": self._received}
        await connection.request("attach", read=read, instance=self.instance, **params)

    def close(self, error: ClientError) -> None:
        """No more items come."""
        if self.ended is None:
            self.error = error
            self.on_news()

    def finish(self, state: str, text: str) -> None:
        """The server tells that all was acknowledged before, and how the instance ended."""
        self.session.close_stream(self.instance)
        self.ended = Ended(state, text)
        self.on_news()

    def _reattached(self, answer: Any) -> None:
        if isinstance(answer, RpcError):
            self.session.close_stream(self.instance)
            self.close(answer)
        elif isinstance(answer, ClientError):
            pass  # the session was forgotten again, and attaches after that welcome; or it is dead
        elif answer["state"] != "running":
            self.finish(answer["state"], answer["text"])

    def _acknowledge(self, number: int, size: int) -> None:
        """Acknowledges the items below a number, a quarter of a window at a time."""
        enough = self.session.facts["window_bytes"] // 4
        if number - self._acked >= WINDOW // 4 or size - self._acked_bytes >= enough:
            self._acked, self._acked_bytes = number, size
            self.session.tell(Ack(self.instance, number))
