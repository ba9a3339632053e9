"""Settings of the HTTP requests that inferlets make."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, PositiveFloat, PositiveInt, field_validator

from pie_py.config.host_rule import HostRule
from pie_py.config.section import Section


def _read_network(value: Any) -> Any:
    """The network that a text names; other values are pydantic's. Raises `ValueError`: none."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return ip_network(value)
    try:
        network = ip_network(value, strict=False)
    except ValueError:
        raise ValueError(f"{value!r} is no network; give one as 10.0.0.0/8 or fd00::/8") from None
    raise ValueError(
        f"{value!r} has host bits set, beyond its first {network.prefixlen} bits; give {network}"
    )


Network: TypeAlias = Annotated[IPv4Network | IPv6Network, BeforeValidator(_read_network)]


class HttpConfig(Section):
    """HTTP requests of inferlets: off unless a host is allowed."""

    # `HOST`, `*.HOST`, an address or `*`, and then `:PORT` or `:*`; without a port 80 and 443.
    allow: tuple[str, ...] = ()
    # Addresses that may be reached though they are not public (private, loopback, ...).
    allow_networks: tuple[Network, ...] = ()
    # Addresses that may not be reached though they are public.
    deny_networks: tuple[Network, ...] = ()
    concurrent: PositiveInt = 32  # requests of one instance under way
    bodies: PositiveInt = 256  # of one instance, not closed
    rate: PositiveFloat = 20.0  # requests of one instance a second; 100 at once after a rest

    @field_validator("allow")
    @classmethod
    def _rules_can_be_read(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for text in allow:
            HostRule.parse(text)
        return allow
