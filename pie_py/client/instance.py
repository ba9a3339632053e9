"""A running inferlet, seen from its client."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import anyio

from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, RpcError, instance_error
from pie_py.wire.rpc import Ack, Ended, Items, Resume

WINDOW = 256  # messages that may be on their way


class Instance:
    """One instance: send to it, iterate over what it sends, await its result.

    Messages come in order, none twice and none missing, over reconnections too. They are kept for who
    reads next; an instance whose client does not read is held up once a window of them is full. While
    `result` waits, messages are taken in without that limit.
    """

    def __init__(
        self, connection: Connection, instance_id: str, program: str, first: int = 0
    ) -> None:
        self.id = instance_id
        self.program = program
        self._connection = connection
        self._messages: deque[str | bytes] = deque()
        self._received = first  # number of the item that comes next
        self._consumed = first
        self._acked = first
        self._received_bytes = 0
        self._consumed_bytes = 0
        self._acked_bytes = 0
        self._ended: Ended | None = None
        self._error: ClientError | None = None
        self._result_waiters = 0
        self._news: anyio.Event | None = None  # while somebody waits
        self._sending: anyio.Lock | None = None

    def __repr__(self) -> str:
        return f"<Instance {self.id}>"

    # Reading

    def __aiter__(self) -> AsyncIterator[str | bytes]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[str | bytes]:
        while (message := await self.receive()) is not None:
            yield message

    async def receive(self) -> str | bytes | None:
        """The next message, text or bytes; None when the instance has ended and sent no more.

        Raises:
            ClientError: if no more can come though the instance may live: the connection was lost for
                good, or another client reads now.
        """
        while not self._messages:
            if self._ended is not None:
                return None
            if self._error is not None:
                raise self._error
            await self._until_news()
        message = self._messages.popleft()
        self._consume(len(message))
        return message

    async def result(self) -> str:
        """Waits for the end and returns the result. Messages that nobody reads are kept meanwhile.

        Raises:
            UsageError: if the inferlet did not understand its arguments.
            InferletFailed: if it ended otherwise without a result.
            ClientError: as `receive`.
        """
        self._result_waiters += 1
        self._take_unread()
        try:
            while self._ended is None:
                if self._error is not None:
                    raise self._error
                await self._until_news()
        finally:
            self._result_waiters -= 1
        if self._ended.state != "finished":
            raise instance_error(self._ended.state, self._ended.text)
        return self._ended.text

    @property
    def ended(self) -> bool:
        """Whether the instance is known to have ended."""
        return self._ended is not None

    # Acting

    async def send(self, message: str | bytes) -> None:
        """Sends text or bytes; waits while the instance's mailbox is full. Cancelled, it may have sent.

        Raises:
            RpcError: `limit-exceeded` (too large), `cancelled` (the instance has ended),
                `invalid-argument` (a text with lone surrogates).
        """
        data = message.encode(errors="surrogatepass") if isinstance(message, str) else message
        size = len(data)
        limit = self._connection.facts["message_bytes"]
        if size > limit:
            raise RpcError(
                "limit-exceeded",
                f"a message of {size} bytes; this server takes {limit} at most: send it in parts",
            )
        if self._sending is None:
            self._sending = anyio.Lock()
        async with self._sending:
            await self._connection.request("send", instance=self.id, message=message)

    async def cancel(self) -> None:
        """Ends the instance. Its `result` raises InferletFailed with state "killed"."""
        await self._connection.request("kill", instance=self.id)

    async def detach(self) -> None:
        """Stops reading. The instance goes on if it was launched detached, else for a minute or so."""
        if self._consumed > self._acked:  # who attaches next gets only what was not read here
            self._acked = self._consumed
            self._connection.tell(Ack(self.id, self._acked))
        self._connection.close_stream(self.id)
        await self._connection.request("detach", instance=self.id)
        self.on_closed(RpcError("cancelled", "the client has detached from this instance"))

    async def logs(self, after: int = 0) -> dict[str, Any]:
        """The lines it logged, from number `after` on, and under `next` the `after` of a later call."""
        lines: dict[str, Any] = await self._connection.request(
            "logs", instance=self.id, after=after
        )
        return lines

    # From the connection

    def on_items(self, items: Items) -> None:
        """Takes items in; those that came before are dropped."""
        if items.first > self._received:  # sent before the server learned what is here: comes again
            return
        for item in items.items[self._received - items.first :]:
            self._received += 1
            if isinstance(item, Ended):
                self._finish(item)
            else:
                self._messages.append(item)
                self._received_bytes += len(item)
        if self._result_waiters:
            self._take_unread()
        self._announce()

    def on_resume(self, resumed: bool) -> None:
        """Goes on where the broken connection left."""
        if resumed:
            # An acknowledgement may have been lost with the connection.
            self._connection.tell(Resume(self.id, self._received, max(self._consumed, self._acked)))
        else:
            self._connection.ask(
                "attach",
                then=self._reattached,
                instance=self.id,
                window=WINDOW,
                received=self._received,
            )

    def on_closed(self, error: ClientError) -> None:
        """No more items come."""
        if self._ended is None:
            self._error = error
            self._announce()

    def finish_with(self, state: str, text: str) -> None:
        """The server tells that all has been consumed before, and how it ended."""
        self._connection.close_stream(self.id)
        self._ended = Ended(state, text)
        self._announce()

    def _reattached(self, answer: Any) -> None:
        if isinstance(answer, ClientError):
            self._connection.close_stream(self.id)
            self.on_closed(answer)
        elif answer["state"] != "running":
            self.finish_with(answer["state"], answer["text"])

    def _finish(self, ended: Ended) -> None:
        self._ended = ended
        self._connection.close_stream(self.id)
        self._connection.tell(Ack(self.id, self._received))

    def _consume(self, size: int) -> None:
        self._consumed += 1
        self._consumed_bytes += size
        self._acknowledge(self._consumed, self._consumed_bytes)

    def _take_unread(self) -> None:
        """While somebody waits for the result, what has come makes room for more."""
        self._acknowledge(self._received, self._received_bytes)

    def _acknowledge(self, number: int, size: int) -> None:
        """Tells the server, now and then, that items below a number are its no longer."""
        enough = self._connection.facts["window_bytes"] // 4
        if number - self._acked >= WINDOW // 4 or size - self._acked_bytes >= enough:
            self._acked, self._acked_bytes = number, size
            self._connection.tell(Ack(self.id, number))

    def _announce(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _until_news(self) -> None:
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()
