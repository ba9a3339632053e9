"""One connection to an MCP server, by the official SDK, and its secrets.

They stay out of the configuration file, of answers and of logs.
"""

from __future__ import annotations

import json
import logging
import math
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import httpcore2
import httpx2
import mcp_types as types
import structlog
import trio
from httpcore2 import AsyncNetworkBackend
from mcp import Client, MCPError
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND
from pydantic import ValidationError

from pie_control.api.http.network import HeadStream, tls_context
from pie_control.api.mcp.stdio import stdio_transport
from pie_control.errors import ApiError, Code, exceeded, invalid, unsupported
from pie_py import __version__
from pie_py.config.child import first_error
from pie_py.config.mcp import McpServerConfig, redacted


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that may have so many bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for chunk in self._stream:
            count += len(chunk)
            if count > self._most:
                raise httpx2.StreamError(
                    f"a message of more than {self._most} bytes (`message_bytes`)"
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """Bounds answers. Streams of events are bounded event by event, by the SDK."""

    def __init__(
        self, most: int, backend: AsyncNetworkBackend | None, context: ssl.SSLContext
    ) -> None:
        super().__init__(verify=context, trust_env=False)
        self._most = most
        if backend is not None:  # httpx takes none
            self._pool = httpcore2.AsyncConnectionPool(ssl_context=context, network_backend=backend)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        stream = response.extensions.get("network_stream")
        if isinstance(stream, HeadStream):
            stream.begin_body()
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is packed though that was not asked for")
        kind = response.headers.get("content-type", "").lower()
        if not kind.startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream, self._most)
        return response


@asynccontextmanager
async def http_transport(
    config: McpServerConfig, backend: AsyncNetworkBackend | None
) -> AsyncGenerator[TransportStreams, None]:
    """Streams to and from the server at `config.url`, by connections that `backend` makes."""
    assert config.url is not None
    context = await trio.to_thread.run_sync(tls_context)
    async with (
        httpx2.AsyncClient(
            transport=_BoundedTransport(config.message_bytes, backend, context),
            headers={**config.headers, "accept-encoding": "identity"},
            # A stream of events may say nothing for long.
            timeout=httpx2.Timeout(30.0, read=300.0),
            trust_env=False,
        ) as client,
        streamable_http_client(
            config.url, http_client=client, max_sse_event_size=config.message_bytes
        ) as streams,
    ):
        yield streams


log = structlog.get_logger("pie.mcp")
# What the SDK has to say of servers that go wrong comes back as errors, too.
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp").propagate = False
logging.getLogger("client").addHandler(logging.NullHandler())

MOST_PAGES = 100  # of a list of tools


class SessionGone(Exception):
    """The server has forgotten the session, and has not looked at the request."""


class McpConnection:
    """From the start of the server, or the first request to it, until it is lost or dropped."""

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        backend: AsyncNetworkBackend | None = None,
        repeatable: set[str] | None = None,
    ) -> None:
        """Takes what makes connections to a URL, None for the usual way; and the names of tools
        that may be called again, which lists of them change.
        """
        self._repeatable = set() if repeatable is None else repeatable
        self._name = name
        self._config = config
        self._backend = backend
        self._client: Client | None = None
        self._over = trio.Event()
        self.ready = trio.Event()  # connected, or failed
        self.failure: str | None = None  # why there is no connection any more
        self.code: Code = "remote-failed"  # of that failure
        self.heard = trio.current_time()  # when the server last said anything
        self.connected = False

    @property
    def usable(self) -> bool:
        """True if calls may use it, or wait for it."""
        return self.failure is None

    def drop(self, reason: str) -> None:
        """Ends the connection, and the server if it was started for it. Calls under way fail."""
        if self.failure is None:
            self.failure = reason
        self._over.set()

    async def run(self) -> None:
        """Connects and stays until the connection is lost or dropped. Raises nothing."""
        try:
            own = self._config.command is not None  # whose start `stdio_transport` limits
            most = math.inf if own else self._config.start_seconds
            with trio.move_on_after(most) as starting:
                async with Client(
                    self._transport(),
                    cache=None,
                    client_info=types.Implementation(name="pie_py", version=__version__),
                ) as self._client:
                    starting.deadline = math.inf
                    self.connected = True
                    self.ready.set()
                    log.info("mcp server ready", name=self._name)
                    await self._over.wait()
            if starting.cancelled_caught:
                self.drop(f"it did not start within {self._config.start_seconds:g} s")
        except Exception as error:  # noqa: BLE001  whatever a server does is an error value
            if isinstance(first := first_error(error), ApiError):
                self.code = first.code
            self.drop(self._reason(error))
        finally:
            self.drop("the server stops")
            self.ready.set()
            log.info("mcp server gone", name=self._name, reason=self.failure)

    def _transport(self) -> AbstractAsyncContextManager[TransportStreams]:
        if self._config.command is not None:
            return stdio_transport(
                self._name, self._config, self._on_message, self.drop, lambda: self.connected
            )
        return http_transport(self._config, self._backend)

    def _reason(self, error: BaseException) -> str:
        """The first error in groups of them, in a line without secrets."""
        return redacted(_line(first_error(error)), self._config)

    def _on_message(self) -> None:
        self.heard = trio.current_time()

    # Calls

    async def list_tools(self) -> str:
        """All tools, as JSON.

        Raises:
            ApiError: what the server or the way to it answers.
            SessionGone: if the connection must be made again.
        """
        tools: list[str] = []
        repeatable: set[str] = set()
        size = 0
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            try:
                page = await self._connected.list_tools(cursor=cursor)
                tools += map(_described, page.tools)
                repeatable.update(each.name for each in page.tools if _is_repeatable(each))
            except Exception as error:  # noqa: BLE001  whatever a server does is an error value
                raise self._translated(error) from None
            size += sum(map(len, tools[len(tools) - len(page.tools) :]))
            most = self._config.message_bytes
            if size > most:
                raise exceeded(
                    f"{self._name}: its tools have more than {most} bytes (`message_bytes` of its"
                    " configuration)"
                )
            cursor = page.next_cursor
            if cursor is None:
                self._repeatable.clear()
                self._repeatable |= repeatable
                return f"[{', '.join(tools)}]"
        raise exceeded(f"{self._name} lists its tools on more than {MOST_PAGES} pages")

    async def call_tool(self, tool: str, arguments: dict[str, Any]) -> str:
        """A tool's answer, as JSON.

        Raises:
            ApiError: what the server or the way to it answers.
            SessionGone: if the connection must be made again.
        """
        try:
            result = await self._connected.call_tool(tool, arguments)
            content = [
                block.model_dump(mode="json", by_alias=True, exclude_none=True)
                for block in result.content
            ]
            return _json(
                {
                    "content": content,
                    "is_error": bool(result.is_error),
                    "structured": result.structured_content,
                }
            )
        except Exception as error:  # noqa: BLE001  whatever a server does is an error value
            raise self._translated(error) from None

    @property
    def _connected(self) -> Client:
        assert self._client is not None, "the connection is ready"
        return self._client

    def _translated(self, error: Exception) -> Exception:
        if not isinstance(error, MCPError):
            if isinstance(first := first_error(error), ApiError):
                return first
            return ApiError("remote-failed", f"{self._name}: {self._reason(error)}")
        if isinstance(error.data, ApiError):  # the transport's, for no server can send one
            return error.data
        is_remote = self._config.url is not None
        if is_remote and (error.code, error.message) == (INVALID_REQUEST, "Session terminated"):
            return SessionGone(error.message)
        if error.code == CONNECTION_CLOSED and self.failure is not None:
            text = f"the MCP server {self._name} is gone: {self.failure}"
            return ApiError("remote-failed", text)
        text = f"{self._name} answers: {error.message}"
        if error.code == INVALID_PARAMS:
            return invalid(text)
        if error.code == METHOD_NOT_FOUND:
            return unsupported(text)
        return ApiError("remote-failed", f"{text} (error {error.code})")


def _is_repeatable(tool: types.Tool) -> bool:
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def _described(tool: types.Tool) -> str:
    return _json(
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "input_schema": tool.input_schema,
            "output_schema": tool.output_schema,
        }
    )


_json = partial(json.dumps, allow_nan=False)


def _line(error: BaseException) -> str:
    if isinstance(error, ApiError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        named = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{named}"
    if isinstance(error, ValidationError):
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        told = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        return f"what it answers is not of the protocol: {'; '.join(told)}"[:500]
    return f"{type(error).__name__}: {error}"[:500]
