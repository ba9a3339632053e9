"""Which hosts a program may reach: the operator's rules, and how a host's name is written."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

DEFAULT_PORTS = (80, 443)
_LOCALHOST = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")


def canonical_host(host: str) -> str:
    """A host as it is compared: ASCII (IDNA), lower case, no last dot; addresses in their short
    form. Raises `ValueError` if it can be no host.
    """
    host = host.strip("[]").removesuffix(".")
    if ":" in host:
        if "%" in host:
            raise ValueError(f"{host!r} has a zone, which only one machine knows: leave it out")
        return ipaddress.IPv6Address(host).compressed
    try:
        return ipaddress.IPv4Address(host).compressed
    except ValueError:
        pass
    if not host.isascii():
        import idna

        try:
            host = idna.encode(host, uts46=True).decode()
        except idna.IDNAError as error:
            raise ValueError(f"{host!r} is no host name: {error}") from None
    host = host.lower()
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is no host name")
    return host


@dataclass(frozen=True)
class HostRule:
    """One entry of the allow-list: `HOST` or `HOST:PORT`.

    HOST is a name, `*.NAME` (every name below it, not itself), an address, or `*`. Without a port
    the rule holds for 80 and 443; with `:*` for every one. A rule that spells an address out, or
    `localhost`, also lets that address be private.
    """

    text: str
    host: str  # canonical; "*" for any; ".example.com" for what is below
    ports: tuple[int, ...] | None  # None: every one

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Reads a rule. Raises `ValueError`: saying what is wrong and how rules look."""
        how = "a rule is HOST, *.HOST, an address or *, and then :PORT or :* if need be"
        if "/" in text:
            raise ValueError(f"{text!r} is no host: {how}; address ranges go into `allow_networks`")
        try:
            host, port = _split(text.strip())
            ports = _ports(port)
            if host == "*":
                return cls(text, host, ports)
            if host.startswith("*."):
                return cls(text, "." + canonical_host(host[2:]), ports)
            return cls(text, canonical_host(host), ports)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}; {how}") from None

    def covers(self, host: str) -> bool:
        """True if the rule names a canonical host, whatever its port."""
        if self.host.startswith("."):
            return host.endswith(self.host)
        return self.host in ("*", host)

    def matches(self, host: str, port: int) -> bool:
        """True if the rule allows a canonical host and a port."""
        return self.covers(host) and (self.ports is None or port in self.ports)

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Addresses that the rule spells out, and that may be private therefore."""
        if self.host == "localhost":
            return _LOCALHOST
        try:
            return (ipaddress.ip_network(self.host),)
        except ValueError:
            return ()


def _split(text: str) -> tuple[str, str | None]:
    """Host and port of a rule; an IPv6 address with a port stands in brackets."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} has a bracket too few or something after the last one")
        return host, rest[1:] if rest else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, None


def _ports(port: str | None) -> tuple[int, ...] | None:
    if port is None:
        return DEFAULT_PORTS
    if port == "*":
        return None
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{port!r} is no port")
    return (int(port),)
