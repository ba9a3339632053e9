"""Handshakes of TLS within the door's bounds: they are connections before uvicorn sees them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from pie_gateway.http.door import HEAD_SECONDS, Door

SECONDS = 1e-3  # of the thread that a handshake takes, about: most of it a signature


class Handshake(asyncio.Protocol):
    """A connection until it is encrypted; then `make` gives what handles it."""

    def __init__(
        self, door: Door, context: ssl.SSLContext, make: Callable[..., Any], **given: Any
    ) -> None:
        """Takes what uvicorn gives to a connection of its own."""
        self._door = door
        self._context = context
        self._make = make
        self._given = given
        self._transport: Any = None
        self._early: list[bytes] = []  # came with the handshake's end
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """As asyncio says."""
        self._transport = transport
        transport.pause_reading()
        address = transport.get_extra_info("peername")
        self._door.enter(self, address[0] if isinstance(address, tuple) else "")
        self._door.spend(self, SECONDS)
        if self._door.may_read(self):
            self.go_on()
        else:
            self._door.rest(self)

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio says."""
        self._door.leave(self)

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        self._early.append(data)

    def drop(self) -> None:
        """Cuts it off."""
        self._transport.abort()

    def go_on(self) -> None:
        """Begins the handshake."""
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            encrypted: Any = await loop.start_tls(
                self._transport,
                self,
                self._context,
                server_side=True,
                ssl_handshake_timeout=HEAD_SECONDS,
            )
        except OSError:  # a stranger's mistakes, TLS's among them: asyncio has cut it off
            return
        self._door.leave(self)
        if encrypted is None or encrypted.is_closing():
            return
        connection = self._make(**self._given)
        encrypted.set_protocol(connection)
        connection.connection_made(encrypted)
        for data in self._early:
            connection.data_received(data)
