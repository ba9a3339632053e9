"""Endpoints: where a server listens, and whether that is inside this machine."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from dataclasses import dataclass

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
        """Whether only this machine reaches it, so that it needs no keys."""
        if self.path is not None:
            return True
        assert self.host is not None
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def is_ipv6(self) -> bool:
        """Whether the host is written as an IPv6 address. Host names are looked up as IPv4."""
        return self.host is not None and self.host.startswith("[")


def parse_endpoint(text: str) -> Endpoint:
    """Checks an endpoint.

    Raises:
        BadEndpoint: if it is of no form that pie_py speaks.
    """
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
    """Whether something listens at an endpoint: a quick look, no conversation."""
    with suppress(OSError):
        if endpoint.path is not None:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(seconds)
                probe.connect(endpoint.path)
        else:
            assert endpoint.host is not None
            port = int(endpoint.text.rpartition(":")[2])
            socket.create_connection((endpoint.host.strip("[]"), port), seconds).close()
        return True
    return False
