"""Endpoints: where a server listens, and whether that is inside this machine."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_SIOCGIFADDR = 0x8915  # Linux: an interface's address
DEFAULT_ENDPOINT = "tcp://127.0.0.1:7743"


class BadEndpoint(ValueError):
    """An endpoint that cannot be used; the text says what would do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked endpoint, `tcp://host:port` or `ipc://path`."""

    text: str
    host: str | None  # of tcp
    path: str | None  # of ipc

    @property
    def is_loopback(self) -> bool:
        """True if only this machine reaches it, so that it needs no keys."""
        if self.path is not None:
            return True
        assert self.host is not None
        return is_loopback(self.host)

    def resolved(self) -> Endpoint:
        """The same with an address in the place of a name or an interface, as libzmq finds it. The
        server that listens there decides by it whether keys are needed, and so do processes that
        get the address from the server.
        """
        if self.host is None or self.host in ("*", address := resolve_host(self.host)):
            return self
        return Endpoint(f"tcp://{address}:{self.text.rpartition(':')[2]}", address, None)

    @property
    def is_ipv6(self) -> bool:
        """True if the host is written as an IPv6 address. Host names are looked up as IPv4."""
        return self.host is not None and self.host.startswith("[")


def is_loopback(host: str) -> bool:
    """True if an address, or the name `localhost`, is of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def resolve_host(host: str) -> str:
    """The IPv4 address of a name, or of a network interface; what has none stays as it is."""
    with suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return host
    try:
        socket.if_nametoindex(host)
    except (OSError, ValueError):
        with suppress(OSError, UnicodeError):
            return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
        return host
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        request = struct.pack("256s", host.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24])
    return host


def parse_endpoint(text: str) -> Endpoint:
    """Checks an endpoint. Raises BadEndpoint if it is of no form that pie_py speaks."""
    if text.startswith("ipc://") and (path := text.removeprefix("ipc://")):
        if len(path.encode()) > 100:  # sun_path holds 107 bytes, and libzmq cuts it silently
            raise BadEndpoint(f"the path of {text} is longer than 100 bytes; choose a shorter one")
        return Endpoint(text, None, path)
    found = re.fullmatch(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^:/\s]+):(\d{1,5}|\*)", text)
    if found is None or (found[2] != "*" and int(found[2]) > 65535):
        raise BadEndpoint(
            f"{text!r} is no endpoint; give tcp://HOST:PORT (as tcp://127.0.0.1:7743) or ipc://PATH"
        )
    return Endpoint(text, found[1], None)


def answers(endpoint: Endpoint, seconds: float = 1.0) -> bool:
    """True if something listens at an endpoint: a quick look, no conversation."""
    with suppress(OSError), _connected(endpoint, seconds):
        return True
    return False


def in_use(endpoint: Endpoint) -> str:
    """The message where something else listens."""
    return (
        f"{endpoint.text} is in use already, perhaps by another pie-py server: stop that one, or"
        " choose another with --endpoint tcp://127.0.0.1:PORT"
    )


# ZMTP 3, "Greeting": a signature, the version, the mechanism padded with zeros, and more.
_SIGNATURE_AND_VERSION = b"\xff" + bytes(8) + b"\x7f\x03"
_MECHANISM = slice(12, 32)


def mechanism(endpoint: Endpoint, seconds: float = 1.0) -> str | None:
    """The security mechanism that a ZeroMQ socket at an endpoint speaks: "NULL", "CURVE" and
    others.

    None if what listens there says none within `seconds`. Blocks for that long, and as long to
    connect. Raises `OSError` if nothing listens there.
    """
    greeting = b""
    with _connected(endpoint, seconds) as probe, suppress(OSError):
        probe.sendall(_SIGNATURE_AND_VERSION)  # ours stays open: both sides talk without waiting
        end = time.monotonic() + seconds
        while len(greeting) < _MECHANISM.stop and (left := end - time.monotonic()) > 0:
            probe.settimeout(left)
            part = probe.recv(_MECHANISM.stop - len(greeting))
            if not part:
                break
            greeting += part
    if len(greeting) < _MECHANISM.stop or (greeting[0], greeting[9]) != (0xFF, 0x7F):
        return None
    return greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")


@contextmanager
def _connected(endpoint: Endpoint, seconds: float) -> Iterator[socket.socket]:
    if endpoint.path is not None:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(seconds)
            probe.connect(endpoint.path)
            yield probe
    else:
        assert endpoint.host is not None
        if (port := endpoint.text.rpartition(":")[2]) == "*":
            raise ConnectionRefusedError(f"{endpoint.text} is any port")
        with socket.create_connection((endpoint.host.strip("[]"), int(port)), seconds) as probe:
            yield probe
