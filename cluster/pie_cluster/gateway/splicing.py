"""Bytes between pairs of connected sockets, carried by one thread.

What comes by one socket of a pair goes out by the other. While that does not take it, no more is
read: so TCP holds up the sender, and a pair takes no more memory than a chunk each way. When one
socket has ended, the other gets what is left, and ends. asyncio's transports do this with a fourth
of the CPU time that trio's streams take.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

CHUNK_BYTES = 256 << 10  # asyncio's: read at once, so that all have their turn


class _End(asyncio.Protocol):
    """One socket of a pair."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self.other = self
        self.transport = cast("asyncio.Transport", None)
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(0)
        self.transport.pause_reading()  # until the other one is there

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.other.transport.close()
        self._on_lost()


class Splicing:
    """Carries bytes in the thread that calls `run`."""

    def __init__(self) -> None:
        """Carries nothing before `run`."""
        self._loop = asyncio.new_event_loop()
        self._pairs: set[tuple[_End, _End]] = set()

    def add(self, one: socket.socket, other: socket.socket, on_end: Callable[[], Any]) -> None:
        """Takes a pair of connected sockets that do not block, and closes both when they have
        ended; `on_end` is called once then, in the thread of `run`. Callable from any thread.
        """
        asyncio.run_coroutine_threadsafe(self._join(one, other, on_end), self._loop)

    def stop(self) -> None:
        """Has `run` close all sockets and return. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def run(self) -> None:
        """Carries until `stop`."""
        try:
            self._loop.run_forever()
        finally:
            pairs, self._pairs = self._pairs, set()
            for end in (end for pair in pairs for end in pair):
                end.transport.abort()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _join(
        self, one: socket.socket, other: socket.socket, on_end: Callable[[], Any]
    ) -> None:
        lost: list[None] = []

        def on_lost() -> None:
            lost.append(None)
            if len(lost) == len(pair) and pair in self._pairs:
                self._pairs.remove(pair)
                on_end()

        pair = _End(on_lost), _End(on_lost)
        pair[0].other, pair[1].other = pair[1], pair[0]
        self._pairs.add(pair)
        await self._loop.connect_accepted_socket(lambda: pair[0], one)
        await self._loop.connect_accepted_socket(lambda: pair[1], other)
        for end in pair:
            end.transport.resume_reading()
