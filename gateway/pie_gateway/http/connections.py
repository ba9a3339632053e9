"""uvicorn's connections with bounds: of heads, pipelined requests, and time (`door.py`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from pie_gateway.http.door import REQUEST_SECONDS, Door

log = structlog.get_logger("pie.http")

HEAD_BYTES = 64 << 10
PIPELINED = 16  # requests that wait for the answer of another one
FRAGMENTS = 1024  # of a message of a WebSocket, which may be empty
READ_BYTES = 32 << 10  # at once from the socket
HEAD_PIECE, PIECE = 1 << 10, 8 << 10  # of that to the parser, which stops for nothing
# A chunked body has its sizes beside it, and trailers behind it: bytes of it for each of these.
BESIDE_BODY = 8
STATE = "connection"  # where a request finds its connection, in the state of its scope
_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-length: 0\r\n\r\n"
)


class Bounded(asyncio.Protocol):
    """The base of both kinds of connections: they are read in pieces, while the door lets them."""

    piece = PIECE
    transport: Any
    is_paused: Any  # whether uvicorn reads no more for now

    def __init__(self, door: Door, **given: Any) -> None:
        super().__init__(**given)
        self.door = door
        self._kept: list[bytes] = []  # read, and not parsed yet
        self._is_over = False  # it has become another one

    def connection_made(self, transport: Any) -> None:
        """As asyncio says."""
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # asyncio's own is 256 kB
        address = transport.get_extra_info("peername")
        self.door.enter(self, address[0] if isinstance(address, tuple) else "")

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio says."""
        self.door.leave(self)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        if self._kept:
            self._keep(data)
        else:
            self._read(data)

    def go_on(self) -> None:
        """Reads what was kept during a rest, and then more."""
        data = b"".join(self._kept)
        self._kept.clear()
        try:
            self._read(data)
        except Exception:  # as asyncio does, which has not called it
            log.exception("a connection failed")
            self.drop()
        if not (self._kept or self.is_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def drop(self) -> None:
        """Cuts it off."""
        self.transport.abort()

    def admit(self, user: str, *, alone: bool) -> bool:
        """A request is a user's; returns whether they may have one connection more."""
        return self.door.admit(self, user, alone=alone)

    def _read(self, data: bytes) -> None:
        at = 0
        while at < len(data) and not (self.transport.is_closing() or self._is_over):
            if not self.door.may_read(self):
                self._keep(data[at:])
                return
            start, piece = time.thread_time(), self.piece
            self._take(data[at : at + piece])
            self.door.spend(self, time.thread_time() - start)
            at += piece

    def _take(self, data: bytes) -> None:
        super().data_received(data)

    def _keep(self, data: bytes) -> None:
        self._kept.append(data)
        self.transport.pause_reading()
        self.door.rest(self)


class HttpConnection(Bounded, HttpToolsProtocol):
    """A connection of HTTP."""

    def __init__(self, door: Door, **given: Any) -> None:
        super().__init__(door, **given)
        self._beside = 0  # bytes of the request that are no body

    @property
    def is_paused(self) -> bool:
        """True if uvicorn reads no more for now."""
        return self.flow.read_paused

    @property
    def piece(self) -> int:  # type: ignore[override]
        """Bytes of heads: several requests are in few of them."""
        return PIECE if self.cycle is not None and self.cycle.more_body else HEAD_PIECE

    def _take(self, data: bytes) -> None:
        self._beside += len(data)
        super()._take(data)
        if self._beside > HEAD_BYTES:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(_TOO_LONG)
            self.transport.close()
        elif len(self.pipeline) > PIPELINED:
            self.drop()

    def handle_websocket_upgrade(self) -> None:
        """From now on the connection of the WebSocket is the door's."""
        self._is_over = True
        self.door.leave(self)
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """As httptools says."""
        super().on_message_begin()
        self.scope["state"][STATE] = self

    def on_headers_complete(self) -> None:
        """As httptools says."""
        self._beside = 0
        self.door.has_head(self)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.door.spend(self, REQUEST_SECONDS)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """As httptools says."""
        self._beside = max(0, self._beside - BESIDE_BODY * len(body))
        super().on_body(body)

    def on_response_complete(self) -> None:
        """As uvicorn says."""
        more = bool(self.pipeline)
        super().on_response_complete()
        if not more:
            self.door.waits(self)


class WebSocketConnection(Bounded, WebSocketsSansIOProtocol):
    """A connection of a WebSocket."""

    on_lost: Callable[[], None] | None = None  # also while what has come is not taken

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio says."""
        super().connection_lost(error)
        if self.on_lost is not None:
            self.on_lost()

    def keepalive_timeout(self) -> None:
        """As uvicorn says; an answer that is not read yet may have come."""
        if self.read_paused:
            self.pong_timer = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()

    @property
    def is_paused(self) -> bool:
        """True if uvicorn reads no more for now."""
        return self.read_paused

    def handle_connect(self, event: Request) -> None:
        """As uvicorn says."""
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["state"][STATE] = self
        self.door.spend(self, REQUEST_SECONDS)

    def handle_cont(self, event: Frame) -> None:
        """As uvicorn says."""
        super().handle_cont(event)
        if len(self.frames) > FRAGMENTS:
            self.drop()

    def admit(self, user: str, *, alone: bool) -> bool:
        """As for a request; nothing has to come at a time any more."""
        self.door.has_head(self)
        return super().admit(user, alone=alone)
