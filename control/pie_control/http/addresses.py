"""Which addresses are out in the public internet, and which hide another address in themselves."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

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
    """What keeps an address from being an ordinary public one; None if nothing does."""
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
