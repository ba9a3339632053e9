"""MCP over streamable HTTP, within bounds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpcore2
import httpx2
from httpcore2 import AsyncNetworkBackend
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from pie_control.api.http.network import HeadStream
from pie_py.config.mcp import McpServerConfig


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

    def __init__(self, most: int, backend: AsyncNetworkBackend | None) -> None:
        context = httpcore2.default_ssl_context()
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
    async with (
        httpx2.AsyncClient(
            transport=_BoundedTransport(config.message_bytes, backend),
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
