"""One request and its answer, from the call to the last byte of the body."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import httpcore2
import trio

from pie_control.api.http.network import HeadStream, HttpPolicy
from pie_control.api.http.request import HEADER_BYTES, HttpRequest, redirected
from pie_control.errors import ApiError, exceeded, invalid
from pie_control.instances.futures import Future

MAX_REDIRECTS = 5  # followed in a row
CONNECT_SECONDS = 10.0  # until a host has answered
RESPONSE_BYTES = 64 << 20  # of a body, unpacked
_REDIRECTS = (301, 302, 303, 307, 308)


class Body:
    """The bytes of one answer, in pieces, unpacked lazily: a gzip bomb costs no more than what is
    read of it.
    """

    def __init__(self, chunks: AsyncIterator[bytes], limit: int, *, gzip: bool) -> None:
        self._chunks = chunks
        self._limit = limit
        self._count = 0
        self._left = b""  # of the newest chunk
        self._member = zlib.decompressobj(wbits=31) if gzip else None
        self._is_within = False  # a member has begun, and has not ended

    async def read(self, most: int) -> bytes:
        """The next bytes, at least one and at most `most`; none at the end.

        Raises:
            ApiError: `limit-exceeded` over the limit, `remote-failed`; and what the chunks raise.
        """
        while True:
            if self._left and (data := self._take(most)):
                self._count += len(data)
                if self._count > self._limit:
                    raise exceeded(
                        f"the body has more than {self._limit} bytes, the most that a server takes"
                    )
                return data
            # Pieces that hold nothing may come without an end, and all at once.
            await trio.lowlevel.checkpoint()
            if self._left:
                continue
            try:
                self._left = await anext(self._chunks)
            except StopAsyncIteration:
                if self._is_within:
                    text = "the gzip body ends in the middle"
                    raise ApiError("remote-failed", text) from None
                return b""

    def _take(self, most: int) -> bytes:
        """At most so many bytes of what is left, of one member if it is packed; perhaps none."""
        member = self._member
        if member is None:
            data, self._left = self._left[:most], self._left[most:]
            return data
        try:
            data = member.decompress(self._left, most)
        except zlib.error as error:
            raise ApiError("remote-failed", f"the body is no gzip: {error}") from None
        self._left, self._is_within = member.unconsumed_tail, not member.eof
        if member.eof:  # another member may follow (RFC 1952, section 2.2)
            self._left, self._member = member.unused_data, zlib.decompressobj(wbits=31)
        return data


@dataclass(frozen=True)
class Head:
    """Status and headers of an answer whose body can be read."""

    status: int
    headers: list[tuple[str, str]]
    exchange: Exchange


class Exchange:
    """Runs in a task of its own, which owns the connection and ends with it.

    Reads of the body are asked for by futures, one at a time. A read that is given up loses no
    byte.
    """

    def __init__(
        self,
        policy: HttpPolicy,
        pool: Callable[[], Awaitable[httpcore2.AsyncConnectionPool]],
        on_over: Callable[[Exchange], None],
        request: HttpRequest,
        timeout: float,
        future: Future,
    ) -> None:
        """Has sent nothing. All must be over after `timeout` seconds; `on_over` is called once,
        when nothing more can be read; the future is of the `Head`.
        """
        self._policy = policy
        self._pool = pool
        self._on_over = on_over
        self._request = request
        self._timeout = timeout
        self._scope = trio.CancelScope(deadline=trio.current_time() + timeout)
        self._head: Future | None = future
        self._read: tuple[Future, int] | None = None  # that has no answer yet
        self._last: Future | None = None
        self._wanted = trio.Event()
        self._unread = b""  # what a read that was given up has left
        self._end: ApiError | None = None
        self.over = False  # nothing more can be read

    @property
    def url(self) -> str:
        """Where the answer came from, once it is there."""
        return str(self._request.url)

    def close(self) -> None:
        """Gives the rest up and closes the connection. Idempotent."""
        self._scope.cancel()
        self._finish(ApiError("cancelled", "the body was closed"))

    def read(self, most: int, future: Future) -> None:
        """Asks for the next bytes. Raises ApiError `busy` if a read is under way."""
        if self._last is not None and self._last.on_cancel is not None:
            raise ApiError("busy", "a read of this body is under way: take or cancel it first")
        if self.over:
            future.resolve(b"") if self._end is None else future.fail(self._end)
            return
        self._read, self._last = (future, most), future
        future.on_cancel = lambda: self._give_up(future)
        self._wanted.set()

    def _give_up(self, future: Future) -> None:
        if self._read is not None and self._read[0] is future:
            self._read = None
        elif future.value:
            self._unread = future.value + self._unread

    async def run(self) -> None:
        """Sends the request, then serves reads until the end. Raises nothing."""
        error: ApiError | None = None
        with self._scope:
            try:
                response = await self._follow()
                try:
                    await self._serve(response)
                finally:
                    await response.aclose()
            except ApiError as caught:
                error = caught
            except Exception as caught:  # noqa: BLE001  whatever a server does is an error value
                error = _translated(caught, self._request)
        if self._scope.cancelled_caught:
            error = ApiError(
                "timed-out",
                f"{self._request.host} has not answered in full within {self._timeout:g} s",
            )
        self._finish(error)

    def _finish(self, error: ApiError | None) -> None:
        """Wakes the waiting calls and releases the slot."""
        if self.over:
            return
        self.over = True
        self._end = error
        if self._head is not None and error is not None:
            self._head.fail(error)
        if self._read is not None:
            future, _ = self._read
            self._read = None
            future.resolve(b"") if error is None else future.fail(error)
        self._unread = b""
        self._request = replace(self._request, body=b"")  # its handle may stay for long
        self._on_over(self)

    async def _follow(self) -> httpcore2.Response:
        """Sends the request and those that redirects ask for; the first answer that is none."""
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(self._request)
            location = _header(response, b"location")
            if response.status not in _REDIRECTS or location is None:
                return response
            await response.aclose()
            self._request = redirected(self._request, self._policy, response.status, location)
        raise exceeded(f"more than {MAX_REDIRECTS} redirects, the last one to {self._request.url}")

    async def _send(self, request: HttpRequest) -> httpcore2.Response:
        pool = await self._pool()
        url = request.url
        response = await pool.handle_async_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(
                    scheme=url.raw_scheme,
                    host=url.raw_host,
                    port=url.port,
                    target=url.raw_path,
                ),
                headers=request.wire_headers(),
                content=request.body or None,
                extensions={"timeout": {"connect": CONNECT_SECONDS}},
            )
        )
        stream = response.extensions.get("network_stream")
        if isinstance(stream, HeadStream):
            stream.begin_body()
        size = sum(len(name) + len(value) + 4 for name, value in response.headers)
        if size > HEADER_BYTES:
            await response.aclose()
            raise exceeded(
                f"{request.host} answers with {size} bytes of headers; {HEADER_BYTES} at most"
            )
        return response

    async def _serve(self, response: httpcore2.Response) -> None:
        """Announces the head and serves reads until the body's end."""
        packed = (_header(response, b"content-encoding") or "").strip().lower()
        gzip = self._request.decode and packed in ("gzip", "x-gzip")
        gone = {b"content-encoding", b"content-length"} if gzip else set()
        headers = [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in response.headers
            if name.lower() not in gone
        ]
        head, self._head = self._head, None
        assert head is not None
        head.resolve(Head(response.status, headers, self))
        async with aclosing(_chunks(response)) as chunks:
            body = Body(chunks, RESPONSE_BYTES, gzip=gzip)
            while await self._answer(body):
                pass

    async def _answer(self, body: Body) -> bool:
        """Serves the next read; False after the end of the body."""
        while self._read is None:
            self._wanted = trio.Event()
            await self._wanted.wait()
        if not self._unread:
            self._unread = await body.read(self._read[1])
            if not self._unread:
                return False
        if self._read is not None:  # not given up meanwhile
            future, most = self._read
            self._read = None
            data, self._unread = self._unread[:most], self._unread[most:]
            future.resolve(data)
            if future.error is not None:  # there is no room for them yet
                self._unread = data + self._unread
        return True


async def _chunks(response: httpcore2.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_stream():
        yield chunk


def _header(response: httpcore2.Response, name: bytes) -> str | None:
    for key, value in response.headers:
        if key.lower() == name:
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value.decode("latin-1")
    return None


def _translated(error: Exception, request: HttpRequest) -> ApiError:
    """The program's error for a failure on the way."""
    where = f"{request.host}:{request.port}"
    if isinstance(error, httpcore2.TimeoutException):
        return ApiError("timed-out", f"{where} cannot be reached in time")
    if isinstance(error, httpcore2.ConnectError):
        return ApiError("remote-failed", f"cannot connect to {where}: {_reason(error)}")
    if isinstance(error, httpcore2.NetworkError | httpcore2.RemoteProtocolError):
        return ApiError("remote-failed", f"the answer of {where} broke off: {_reason(error)}")
    if isinstance(error, httpcore2.LocalProtocolError):
        return invalid(f"the request cannot be sent: {_reason(error)}")
    return ApiError("internal", f"{type(error).__name__}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """The first text in the chain of causes that says something."""
    seen: BaseException | None = error
    while seen is not None:
        if str(seen):
            return str(seen)[:500]
        seen = seen.__cause__ or seen.__context__
    return type(error).__name__
