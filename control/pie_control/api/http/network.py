"""Connections to the hosts and addresses that the operator lets inferlets reach."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, TypeAlias

import trio
from httpcore2 import (
    SOCKET_OPTION,
    AsyncNetworkBackend,
    AsyncNetworkStream,
    ConnectError,
    ConnectTimeout,
    TrioBackend,
)

from pie_control.errors import ApiError, exceeded
from pie_py.config.host_rule import HostRule
from pie_py.config.http import HttpConfig

Address: TypeAlias = IPv4Address | IPv6Address

# What is special and what the standard library does not (in every release that we support) call so.
_SPECIAL = tuple(
    (ipaddress.ip_network(network), name)
    for network, name in (
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("192.0.0.0/24", "protocol assignments"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::/96", "IPv4-compatible"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("2001::/32", "Teredo"),
        ("2002::/16", "6to4"),
        ("fec0::/10", "site-local"),
    )
)


def special_range(address: Address) -> str | None:
    """The kind of an address that is no ordinary public one; None if it is one."""
    for condition, name in (
        (address.is_unspecified, "unspecified"),
        (address.is_loopback, "loopback"),
        (address.is_link_local, "link-local"),
        (address.is_multicast, "multicast"),
    ):
        if condition:
            return name
    for network, name in _SPECIAL:
        if address.version == network.version and address in network:
            return name
    if address.is_private:
        return "private"
    return None if address.is_global and not address.is_reserved else "reserved"


def hidden_addresses(address: Address) -> list[IPv4Address]:
    """IPv4 addresses embedded in an IPv6 address: NAT64, 6to4, Teredo and others."""
    if isinstance(address, IPv4Address):
        return []
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    number = int(address)
    if number >> 32 in (0, 0x64FF9B << 64) and number > 1:
        found.append(IPv4Address(number & 0xFFFFFFFF))
    return [hidden for hidden in found if hidden is not None]


class HttpPolicy:
    """Allows a host by its name and port, and then the addresses that the name stands for."""

    def __init__(self, config: HttpConfig) -> None:
        self._rules = [HostRule.parse(text) for text in config.allow]
        self._networks = config.allow_networks
        self._denied = config.deny_networks

    @property
    def enabled(self) -> bool:
        """True if there is anything that may be reached."""
        return bool(self._rules)

    def check_host(self, host: str, port: int) -> None:
        """Lets a canonical host and a port pass. Raises ApiError `permission-denied`."""
        if not self._rules:
            raise ApiError(
                "permission-denied",
                "this server makes no HTTP requests; its operator allows hosts with `pie-py serve"
                " --allow-http HOST` or `allow` in [http] of its configuration",
            )
        if self._matching(host, port):
            return
        shown = f"[{host}]" if ":" in host else host
        if any(rule.covers(host) for rule in self._rules):
            what = f"port {port} of {shown} is not on this server's allow-list"
        else:
            what = f"{shown} is not on this server's allow-list"
        raise ApiError(
            "permission-denied",
            f"{what}; its operator adds it with `--allow-http {shown}:{port}` or `allow` in [http]",
        )

    def check_address(self, host: str, port: int, address: Address) -> None:
        """Lets an address pass that a host's name stands for.

        Raises:
            ApiError: `permission-denied`.
        """
        allowed = [*self._networks]
        for rule in self._matching(host, port):
            allowed += rule.networks
        for part in (address, *hidden_addresses(address)):
            if _is_in(part, self._denied):
                raise ApiError(
                    "permission-denied",
                    f"{host} is {part}, which this server's operator denies (`deny_networks`)",
                )
            name = special_range(part)
            if name is not None and not _is_in(part, allowed):
                via = "" if part is address else f" behind {address}"
                raise ApiError(
                    "permission-denied",
                    f"{host} is {part}{via}, an address that is not public ({name}); the server's"
                    f" operator allows it with `--allow-http-network {ipaddress.ip_network(part)}`"
                    " or `allow_networks` in [http]",
                )

    def _matching(self, host: str, port: int) -> list[HostRule]:
        return [rule for rule in self._rules if rule.matches(host, port)]


def _is_in(address: Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address.version == n.version and address in n for n in networks)


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


def tls_context() -> ssl.SSLContext:
    """Verifies certificates by the machine's trusted authorities. Reads files: call in a thread."""
    from httpcore2 import default_ssl_context

    return default_ssl_context()
