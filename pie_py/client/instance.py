"""A running inferlet, seen from its client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import anyio

from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, ConnectionLost, RpcError, instance_error
from pie_py.client.routes import Route
from pie_py.client.stream import WINDOW, Stream
from pie_py.wire import methods
from pie_py.wire.methods import Logs


class Instance:
    """One instance: send to it, iterate over what it sends, await its result.

    Messages come in order, none twice and none missing, over reconnections too. They are kept until
    they are read; an instance whose client does not read is held up once a window of them is full.
    While `result` waits, messages are taken in without that limit.
    """

    def __init__(self, route: Route, program: str, stream: Stream) -> None:
        self.id = stream.instance
        self.program = program
        self._route = route
        self._stream = stream
        self._news: anyio.Event | None = None  # while a task waits
        self._sending: anyio.Lock | None = None
        stream.on_news = self._announce

    def __repr__(self) -> str:
        return f"<Instance {self.id}>"

    @property
    def node(self) -> str | None:
        """The node of the cluster that it runs on, and which of its lives, as `n7.3`; None on a
        server without a cluster.
        """
        life: str | None = self._stream.session.facts.get("life")
        return life or self.id.partition("@")[2] or None

    # Reading

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        while (message := await self.receive()) is not None:
            yield message

    async def receive(self) -> str | bytes | None:
        """The next message, text or bytes; None when the instance has ended and sent no more.

        Raises:
            ClientError: if no more can come though the instance may live: the connection was lost
                for good, or another client reads now.
        """
        stream = self._stream
        while not len(stream):
            if stream.ended is not None:
                return None
            if stream.error is not None:
                raise stream.error
            await self._until_news()
        return stream.take()

    async def result(self) -> str:
        """Waits for the end and returns the result. Messages that were not read are kept meanwhile.

        Raises:
            UsageError: if the inferlet did not understand its arguments.
            InferletFailed: if it ended otherwise without a result.
            ClientError: as `receive`.
        """
        stream = self._stream
        stream.set_eager(True)
        try:
            while stream.ended is None:
                if stream.error is not None:
                    raise stream.error
                await self._until_news()
        finally:
            stream.set_eager(False)
        if stream.ended.state != "finished":
            raise instance_error(stream.ended.state, stream.ended.text)
        return stream.ended.text

    @property
    def ended(self) -> bool:
        """True if the instance is known to have ended."""
        return self._stream.ended is not None

    @property
    def has_message(self) -> bool:
        """True if `receive` does not wait."""
        return len(self._stream) > 0

    # Acting

    async def send(self, message: str | bytes) -> None:
        """Sends text or bytes; waits while the mailbox is full. Cancelled, it may have sent.

        Raises:
            RpcError: `limit-exceeded` (too large), `cancelled` (the instance has ended),
                `invalid-argument` (a text with lone surrogates).
        """
        data = message.encode(errors="surrogatepass") if isinstance(message, str) else message
        size = len(data)
        limit = self._route.server.session.facts["message_bytes"]
        if size > limit:
            raise RpcError(
                "limit-exceeded",
                f"a message of {size} bytes; this server takes {limit} at most: send it in parts",
            )
        if self._sending is None:
            self._sending = anyio.Lock()
        async with self._sending:
            asked = methods.Send(self.id, message, os.urandom(16))
            while True:
                try:
                    return await self._route.ask(asked)
                except ConnectionLost:  # a durable instance takes none twice
                    if not self._stream.durable or self._route.server.session.error is not None:
                        raise

    async def cancel(self) -> None:
        """Ends the instance. Its `result` raises InferletFailed with state "killed"."""
        await self._route.ask(methods.Kill(self.id))

    async def branch(
        self, at: int, *, program: str | None = None, args: Sequence[str] | None = None
    ) -> Instance:
        """A new instance that has lived as this durable one up to and with a call, by the number
        that `calls` has for it; perhaps of another program, or with other arguments from there on.

        Raises:
            RpcError: `not-found` if this one has no journal; as of a launch.
        """
        return await branch(self._route, self.id, at, program, args)

    async def calls(self, after: int = 0) -> list[dict[str, Any]]:
        """`number`, `call`, `answer` in short, of a durable instance's calls behind the first ones,
        1000 at most.
        """
        return await self._route.ask(methods.Calls(self.id, after))

    async def detach(self) -> None:
        """Stops reading. The instance ends a minute or so later if it was not launched detached."""
        self._stream.detach()
        self._stream.close(RpcError("cancelled", "the client has detached from this instance"))
        await self._route.ask(methods.Detach(self.id))

    async def logs(self, after: int = 0) -> dict[str, Any]:
        """`lines` that it logged, from number `after` on; `next`, the `after` of a later call."""
        return await read_log(self._route.ask, self.id, after)

    def _announce(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _until_news(self) -> None:
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()


async def branch(
    route: Route,
    instance: str,
    at: int,
    program: str | None = None,
    args: Sequence[str] | None = None,
) -> Instance:
    """See `Instance.branch`."""

    async def begin(connection: Connection) -> Instance:
        given = None if args is None else list(args)
        asked: dict[str, Any] = {"call": at, "program": program, "args": given}
        return await opened(route, connection, "branch", instance=instance, **asked)

    return await route.at(instance, begin)


def reader(route: Route, instance: str) -> Instance | None:
    """The instance of an id if it is read from here already, and more may come."""
    found: Instance | None = route.readers.get(instance)
    return found if found is not None and found._stream.is_open else None


async def opened(
    route: Route,
    connection: Connection,
    method: str,
    *,
    on_late: Callable[[Instance], None] | None = None,
    **params: Any,
) -> Instance:
    """The instance that a request launches or names; it is read from unless it is `detached`."""
    session = connection.session

    def read(answer: dict[str, Any]) -> Instance:
        name = params["instance"] if method == "attach" else answer["instance"]
        if (current := reader(route, name)) is not None:  # another task has attached meanwhile
            return current
        stream = Stream(session, name, answer.get("first", 0))
        stream.durable = method == "branch" or answer.get("durable", False)
        if params.get("detached"):
            stream.close(ClientError(f"{name} was launched detached: attach to read from it"))
        else:
            session.open_stream(stream)
        if answer.get("state", "running") != "running":
            stream.finish(answer["state"], answer["text"])
        found = route.readers[name] = Instance(route, answer.get("program", ""), stream)
        return found

    made: Instance = await connection.request(
        method, read=read, on_late=on_late, window=WINDOW, **params
    )
    return made


async def read_log(
    ask: Callable[[Logs], Awaitable[dict[str, Any]]], instance: str, after: int
) -> dict[str, Any]:
    """The lines of a log that there are when the first part comes, from a number on."""
    found = await ask(Logs(instance, after))
    total, lines = found.pop("total"), found["lines"]
    while found["next"] < total:
        after = found["next"]
        found = await ask(Logs(instance, after))
        del found["total"]
        if found["next"] <= after:
            break
        lines += found["lines"]
    found["lines"] = lines
    return found


class Launcher(Protocol):
    """A client, as far as programs of its modules are launched with it."""

    async def upload(self, program: bytes, name: str) -> str:
        """Uploads a program and returns its content hash."""

    async def launch(self, program: str, args: Sequence[str]) -> Instance:
        """Starts an instance of it."""

    async def inspect(self, instance_id: str) -> dict[str, Any]:
        """The facts about an instance."""

    async def server_info(self) -> dict[str, Any]:
        """The facts about the server."""
