"""The hosts and addresses that the operator lets inferlets reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

from pie_control.errors import ApiError
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
