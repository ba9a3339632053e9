"""Small HTTP servers over real sockets that do what they are told, and a client of the control
layer.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import trio

from pie_control.api.http.functions import HttpClient
from pie_control.api.http.network import resolve
from pie_control.errors import ApiError
from pie_control.instances.futures import FutureTable
from pie_py.config.http import HttpConfig
from pie_py.config.limits import Limits
from support.instances import failure


@dataclass(eq=False)
class Caller:
    """What the client knows of an instance."""

    user: str = "tester"
    id: str = "caller"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.futures = FutureTable(self.limits, trio.current_time, lambda kind, seconds: None)
        self._woken: dict[int, trio.Event] = {}
        self.futures.announce = self._announce

    def _announce(self, handle: int) -> None:
        self._woken.setdefault(handle, trio.Event()).set()

    async def result(self, handle: int) -> Any:
        """Waits for a future and takes it."""
        await self.ready(handle)
        return self.futures.take(handle, self.futures.get(handle).kind)

    async def ready(self, handle: int) -> None:
        """Waits for a future."""
        if not self.futures.get(handle).ready:
            await self._woken.setdefault(handle, trio.Event()).wait()


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class Asked:
    """A request as a server saw it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Handler = Callable[[trio.SocketStream, Asked], Awaitable[None]]


@dataclass
class Web:
    """A server. `asked` are the requests so far; `open` counts connections."""

    handler: Handler
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    open: int = 0
    accepted: int = 0
    was_asked: trio.Event = field(default_factory=trio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, stream: trio.SocketStream) -> None:
        self.open += 1
        self.accepted += 1
        try:
            while (asked := await self._read(stream)) is not None:
                self.asked.append(asked)
                self.was_asked.set()
                await self.handler(stream, asked)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            self.open -= 1
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def _read(self, stream: trio.SocketStream) -> Asked | None:
        parser = h11.Connection(h11.SERVER)
        head: h11.Request | None = None
        body = b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = await stream.receive_some(65536)
                if not data and head is None:
                    return None
                parser.receive_data(data)
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {k.decode(): v.decode() for k, v in head.headers}
                return Asked(head.method.decode(), head.target.decode(), headers, body)
            else:
                return None


def reply(status: int, body: bytes = b"", *headers: str) -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def echo(stream: trio.SocketStream, asked: Asked) -> None:
    """Answers with what was asked."""
    text = f"{asked.method} {asked.target} {asked.body.decode()}"
    await stream.send_all(reply(200, text.encode(), "Content-Type: text/plain"))


def always(data: bytes) -> Handler:
    """Answers with these bytes."""

    async def handle(stream: trio.SocketStream, asked: Asked) -> None:
        await stream.send_all(data)

    return handle


def packed(size: int, *, byte: bytes = b"\0") -> bytes:
    """gzip of very many equal bytes."""
    return gzip.compress(byte * size)


class Browser:
    """A client of the control layer, one instance, and the servers that it talks to."""

    def __init__(self, nursery: trio.Nursery, client: HttpClient) -> None:
        self.nursery = nursery
        self.client = client
        self.caller = Caller()

    async def web(self, handler: Handler = echo, *, host: str = "127.0.0.1") -> Web:
        """Starts a server."""
        web = Web(handler)
        listeners = await trio.open_tcp_listeners(0, host=host)
        web.port = listeners[0].socket.getsockname()[1]
        self.nursery.start_soon(trio.serve_listeners, web.serve, listeners)
        return web

    async def head(
        self,
        url: str,
        method: str = "GET",
        headers: list[tuple[str, str]] | None = None,
        body: bytes = b"",
        timeout_ms: int = 0,
        caller: Caller | None = None,
    ) -> tuple[int, list[tuple[str, str]], int]:
        """Status, headers and body handle."""
        caller = caller or self.caller
        handle = self.client.http_request(caller, method, url, headers or [], body, timeout_ms)  # type: ignore[arg-type]
        head = await caller.result(handle)
        return head.status, head.headers, self.client.open_body(caller, head.exchange)  # type: ignore[arg-type]

    async def read(self, body: int, most: int = 1 << 20) -> bytes:
        """The next bytes of a body."""
        handle = self.client.read_body(self.caller, body, most)  # type: ignore[arg-type]
        data: bytes = await self.caller.result(handle)
        return data

    async def rest(self, body: int) -> bytes:
        """All that is left of a body."""
        data = b""
        while chunk := await self.read(body):
            data += chunk
        return data

    async def fetch(self, url: str, **options: Any) -> Answer:
        """The whole answer."""
        status, headers, body = await self.head(url, **options)
        try:
            data = await self.rest(body)
        finally:
            self.client.close_body(self.caller, body)  # type: ignore[arg-type]
        return Answer(status, headers, data)

    async def failure(self, url: str, code: str, *words: str, **options: Any) -> ApiError:
        """The error of this code, whose message has these words, that a request ends with."""
        with failure(code, *words) as caught:
            await self.fetch(url, **options)
        return caught.value

    async def until_idle(self, *webs: Web) -> None:
        """Waits until nothing is under way and the servers have seen every connection end."""
        with trio.fail_after(10):
            while self.client.running or any(web.open for web in webs):
                await trio.sleep(0.005)


@asynccontextmanager
async def browser(resolver: Any = resolve, **settings: Any) -> AsyncIterator[Browser]:
    """A client for whom loopback is allowed, unless told otherwise."""
    settings.setdefault("allow", ("*:*",))
    settings.setdefault("allow_networks", ("127.0.0.0/8",))
    client = HttpClient(HttpConfig(**settings), resolve=resolver)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            yield Browser(nursery, client)
            nursery.cancel_scope.cancel()
