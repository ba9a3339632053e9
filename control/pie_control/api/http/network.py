"""Connections to checked addresses only."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import trio
from httpcore2 import (
    SOCKET_OPTION,
    AsyncNetworkBackend,
    AsyncNetworkStream,
    ConnectError,
    ConnectTimeout,
    TrioBackend,
)

from pie_control.api.http.policy import Address, HttpPolicy
from pie_control.errors import ApiError, exceeded

Resolve = Callable[[str, int], list[str]]
"""Addresses of a name; blocks. Raises OSError if there are none."""

RESOLVER_THREADS = 128
HEAD_PIECE = 4096


def resolve(host: str, port: int) -> list[str]:
    """Addresses of a name, as the machine's resolver gives them, in the order to try them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class HeadStream(AsyncNetworkStream):
    """A connection on which heads of answers are read in small pieces, and are bounded.

    A piece is parsed without a pause, and thousands of heads of status 100 fit into a large one.
    """

    def __init__(self, stream: AsyncNetworkStream, most: int) -> None:
        """Takes how many bytes all heads of an answer may have."""
        self._stream = stream
        self._most = most
        self._head: int | None = 0  # bytes read of it; None in the body

    def begin_body(self) -> None:
        """The head is there."""
        self._head = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Reads. Raises ApiError `limit-exceeded` if the head is too large."""
        if self._head is None:
            return await self._stream.read(max_bytes, timeout)
        if self._head > self._most:
            raise exceeded(f"an answer that begins with over {self._most} bytes of headers")
        data = await self._stream.read(min(max_bytes, HEAD_PIECE), timeout)
        self._head += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Writes a part of a request: what comes next is a head."""
        self._head = 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Closes."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> AsyncNetworkStream:
        """Goes on with TLS."""
        stream = await self._stream.start_tls(ssl_context, server_hostname, timeout)
        return HeadStream(stream, self._most)

    def get_extra_info(self, info: str) -> Any:
        """As the stream's own."""
        return self._stream.get_extra_info(info)


class CheckedBackend(AsyncNetworkBackend):
    """Resolves a name once, checks every address of it, and connects to what was checked.

    DNS rebinding is of no use to an attacker: the name is resolved once, and the connection goes to
    the address that was checked.
    """

    def __init__(self, policy: HttpPolicy, head_bytes: int, resolve: Resolve = resolve) -> None:
        """Takes how many bytes the head of an answer may have."""
        self._policy = policy
        self._head_bytes = head_bytes
        self._resolve = resolve
        self._trio = TrioBackend()
        # Threads of our own: slow name servers must not hold up the server's other threads.
        self._threads = trio.CapacityLimiter(RESOLVER_THREADS)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connects to the first address that answers, within `timeout` seconds for all of them.

        Raises:
            ApiError: `permission-denied` if one of the addresses is not allowed, `not-found` if the
                name has none.
            ConnectError, ConnectTimeout: if none answers.
        """
        deadline = trio.current_time() + (60.0 if timeout is None else timeout)
        with trio.move_on_at(deadline):
            addresses = await self._addresses(host, port)
            break_off: Exception = ConnectError(f"{host} has no address")
            for tried, address in enumerate(addresses):
                left = deadline - trio.current_time()
                try:
                    stream = await self._trio.connect_tcp(
                        str(address), port, left / (len(addresses) - tried), local_address
                    )
                    return HeadStream(stream, self._head_bytes)
                except (ConnectError, ConnectTimeout) as error:
                    break_off = error
            raise break_off
        raise ConnectTimeout(f"no connection to {host}:{port} in time")

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            found = [ipaddress.ip_address(host)]
        except ValueError:
            try:
                texts = await trio.to_thread.run_sync(
                    self._resolve, host, port, abandon_on_cancel=True, limiter=self._threads
                )
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ApiError("not-found", f"no address for {host}: {reason}") from None
            found = [ipaddress.ip_address(text) for text in texts]
        for address in found:
            self._policy.check_address(host, port, address)
        return found

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Refuses: programs reach hosts."""
        raise ConnectError("no Unix sockets")

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await trio.sleep(seconds)


def tls_context() -> ssl.SSLContext:
    """Verifies certificates by the machine's trusted authorities. Reads files: call in a thread."""
    from httpcore2 import default_ssl_context

    return default_ssl_context()
